//! The parts of a `transformers` `config.json` that this decoder needs, and the shapes its kernels are built for.

use serde::Deserialize;

use super::weights::WeightsError;
use crate::demo::attention::{GROUP, HEAD_DIM, KV_HEADS, Q_HEADS};

/// Begin of text; the model expects it as the first token of every sequence. Smaller tokens are bytes.
pub const BOS: u16 = 256;

/// The model's shape. Unused fields are ignored, as in every loader.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// Rows of the embedding and logits of a token.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated MLP.
    pub intermediate_size: usize,
    /// Decoder layers; each is one plane of the KV space.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// KV heads.
    pub num_key_value_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Longest sequence.
    pub max_position_embeddings: usize,
    /// Epsilon of the RMS norms.
    pub rms_norm_eps: f32,
    /// Base of the rotary embedding.
    pub rope_theta: f64,
    /// The logits use the embedding matrix.
    pub tie_word_embeddings: bool,
}

impl Config {
    /// Parse and check `config.json`.
    ///
    /// # Errors
    /// The JSON is invalid, or the attention kernel is not built for the shape.
    pub fn parse(json: &[u8]) -> Result<Config, WeightsError> {
        let config: Config = serde_json::from_slice(json).map_err(WeightsError::Config)?;
        let shape = (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
        if shape != (Q_HEADS, KV_HEADS, HEAD_DIM) || Q_HEADS != KV_HEADS * GROUP {
            return Err(WeightsError::Shape {
                what: "attention heads, KV heads and head_dim".into(),
                expected: vec![Q_HEADS, KV_HEADS, HEAD_DIM],
                found: vec![shape.0, shape.1, shape.2],
            });
        }
        if !config.tie_word_embeddings {
            return Err(WeightsError::Untied);
        }
        Ok(config)
    }
}

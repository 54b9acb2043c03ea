//! The forward pass.

use super::config::Config;
use super::linear::Linear;
use super::math::{add, rms_norm, silu_mul};
use super::rope::Rope;
use super::weights::{Weights, WeightsError};
use crate::demo::attention::{HEAD_DIM, KV_HEADS, Partials, Q_HEADS, pages_of};
use crate::demo::kv::{Kv, Rows};

const Q_WIDTH: usize = Q_HEADS * HEAD_DIM;
const KV_WIDTH: usize = KV_HEADS * HEAD_DIM;

/// Return the softmax scale.
fn scale() -> f32 {
    1.0 / (HEAD_DIM as f32).sqrt()
}

struct Layer {
    input_norm: Vec<f32>,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    mlp_norm: Vec<f32>,
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// The loaded model.
pub struct Decoder {
    config: Config,
    embedding: Vec<f32>,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    head: Linear,
    rope: Rope,
}

/// Activations of one step, allocated once.
pub struct Scratch {
    x: Vec<f32>,
    normed: Vec<f32>,
    q: Vec<f32>,
    /// Predicted queries of the next plane, for one token.
    ahead: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    attended: Vec<f32>,
    projected: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    partials: Partials,
}

impl Scratch {
    /// Allocate for steps of up to `chunk` tokens in sequences of up to `tokens_max` tokens.
    #[must_use]
    pub fn new(config: &Config, chunk: usize, tokens_max: usize) -> Scratch {
        let rows = |width: usize| vec![0.0; chunk * width];
        Scratch {
            x: rows(config.hidden_size),
            normed: rows(config.hidden_size),
            q: rows(Q_WIDTH),
            ahead: vec![0.0; Q_WIDTH],
            k: rows(KV_WIDTH),
            v: rows(KV_WIDTH),
            attended: rows(Q_WIDTH),
            projected: rows(config.hidden_size),
            gate: rows(config.intermediate_size),
            up: rows(config.intermediate_size),
            partials: Partials::new(chunk, pages_of(tokens_max)),
        }
    }
}

impl Layer {
    fn load(weights: &Weights<'_>, config: &Config, layer: usize) -> Result<Layer, WeightsError> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        let linear = |part: &str, outputs: usize, inputs: usize| {
            let weight = weights.tensor(&name(part), &[outputs, inputs])?;
            Ok::<Linear, WeightsError>(Linear::new(&weight, outputs, inputs))
        };
        Ok(Layer {
            input_norm: weights.tensor(&name("input_layernorm"), &[hidden])?,
            q: linear("self_attn.q_proj", Q_WIDTH, hidden)?,
            k: linear("self_attn.k_proj", KV_WIDTH, hidden)?,
            v: linear("self_attn.v_proj", KV_WIDTH, hidden)?,
            o: linear("self_attn.o_proj", hidden, Q_WIDTH)?,
            mlp_norm: weights.tensor(&name("post_attention_layernorm"), &[hidden])?,
            gate: linear("mlp.gate_proj", inner, hidden)?,
            up: linear("mlp.up_proj", inner, hidden)?,
            down: linear("mlp.down_proj", hidden, inner)?,
        })
    }
}

impl Decoder {
    /// Load `config.json` and a safetensors file.
    ///
    /// # Errors
    /// Either cannot be parsed, or does not match this decoder.
    pub fn load(config: &[u8], weights: &[u8]) -> Result<Decoder, WeightsError> {
        let config = Config::parse(config)?;
        let weights = Weights::parse(weights)?;
        let embedding = weights.tensor("model.embed_tokens.weight", &[config.vocab_size, config.hidden_size])?;
        Ok(Decoder {
            layers: (0..config.num_hidden_layers)
                .map(|layer| Layer::load(&weights, &config, layer))
                .collect::<Result<_, _>>()?,
            norm: weights.tensor("model.norm.weight", &[config.hidden_size])?,
            head: Linear::new(&embedding, config.vocab_size, config.hidden_size),
            rope: Rope::new(config.rope_theta, config.max_position_embeddings),
            embedding,
            config,
        })
    }

    /// Return the model's shape.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Run one step of `store`: `tokens` at positions `start`, …; `logits[tokens][vocab_size]` is overwritten.
    ///
    /// # Errors
    /// Errors of the store; the step is then not ended.
    pub fn forward<S: Kv>(
        &self,
        scratch: &mut Scratch,
        store: &mut S,
        tokens: &[u16],
        start: usize,
        logits: &mut [f32],
    ) -> Result<(), S::Error> {
        let (n, hidden) = (tokens.len(), self.config.hidden_size);
        store.open(start + n)?;
        for (x, token) in scratch.x.chunks_exact_mut(hidden).zip(tokens) {
            x.copy_from_slice(&self.embedding[usize::from(*token) * hidden..][..hidden]);
        }
        for (plane, layer) in self.layers.iter().enumerate() {
            if n == 1 && store.wants_ahead()? {
                self.look_ahead(plane + 1, scratch, store, start)?;
            }
            self.attention(layer, plane, scratch, store, n, start)?;
            self.mlp(layer, scratch, n);
        }
        let normed = &mut scratch.normed[..n * hidden];
        rms_norm(&scratch.x[..n * hidden], &self.norm, self.config.rms_norm_eps, normed);
        self.head.apply(normed, logits);
        store.close()
    }

    /// Report the predicted queries of a plane to the store: those that would result if the planes before it did not change the
    /// token.
    fn look_ahead<S: Kv>(
        &self,
        plane: usize,
        scratch: &mut Scratch,
        store: &mut S,
        position: usize,
    ) -> Result<(), S::Error> {
        let Some(layer) = self.layers.get(plane) else { return Ok(()) };
        let hidden = self.config.hidden_size;
        let (normed, ahead) = (&mut scratch.normed[..hidden], &mut scratch.ahead);
        rms_norm(&scratch.x[..hidden], &layer.input_norm, self.config.rms_norm_eps, normed);
        layer.q.apply(normed, ahead);
        self.rope.rotate(position, ahead);
        ahead.iter_mut().for_each(|q| *q *= scale());
        store.ahead(plane, ahead)
    }

    fn attention<S: Kv>(
        &self,
        layer: &Layer,
        plane: usize,
        scratch: &mut Scratch,
        store: &mut S,
        n: usize,
        start: usize,
    ) -> Result<(), S::Error> {
        let hidden = self.config.hidden_size;
        let normed = &mut scratch.normed[..n * hidden];
        let (q, k, v) = (&mut scratch.q[..n * Q_WIDTH], &mut scratch.k[..n * KV_WIDTH], &mut scratch.v[..n * KV_WIDTH]);
        rms_norm(&scratch.x[..n * hidden], &layer.input_norm, self.config.rms_norm_eps, normed);
        layer.q.apply(normed, q);
        layer.k.apply(normed, k);
        layer.v.apply(normed, v);
        let scale = scale();
        for (t, (q, k)) in q.chunks_exact_mut(Q_WIDTH).zip(k.chunks_exact_mut(KV_WIDTH)).enumerate() {
            self.rope.rotate(start + t, q);
            self.rope.rotate(start + t, k);
            q.iter_mut().for_each(|q| *q *= scale);
        }
        let attended = &mut scratch.attended[..n * Q_WIDTH];
        store.attend(plane, Rows { start, q, k, v }, &mut scratch.partials, attended)?;
        let projected = &mut scratch.projected[..n * hidden];
        layer.o.apply(attended, projected);
        add(&mut scratch.x[..n * hidden], projected);
        Ok(())
    }

    fn mlp(&self, layer: &Layer, scratch: &mut Scratch, n: usize) {
        let (hidden, inner) = (self.config.hidden_size, self.config.intermediate_size);
        let normed = &mut scratch.normed[..n * hidden];
        let (gate, up) = (&mut scratch.gate[..n * inner], &mut scratch.up[..n * inner]);
        rms_norm(&scratch.x[..n * hidden], &layer.mlp_norm, self.config.rms_norm_eps, normed);
        layer.gate.apply(normed, gate);
        layer.up.apply(normed, up);
        silu_mul(gate, up);
        let projected = &mut scratch.projected[..n * hidden];
        layer.down.apply(gate, projected);
        add(&mut scratch.x[..n * hidden], projected);
    }
}

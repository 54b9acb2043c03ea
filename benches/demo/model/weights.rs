//! Reads tensors of a safetensors file: f16, widened to f32 (exact).

use half::f16;
use half::slice::HalfFloatSliceExt;
use safetensors::{Dtype, SafeTensors};

/// Why the model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// `config.json` cannot be parsed.
    #[error("model config.json: {0}")]
    Config(#[source] serde_json::Error),
    /// The weights file cannot be parsed, or a tensor is missing.
    #[error("model weights, {what}: {source}")]
    File {
        /// Tensor, or the file itself.
        what: String,
        /// Cause.
        source: safetensors::SafeTensorError,
    },
    /// The shape of a tensor or the configuration does not match the decoder.
    #[error("model shape, {what}: expected {expected:?}, found {found:?}")]
    Shape {
        /// Tensor or setting.
        what: String,
        /// Shape of the decoder.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A tensor is not f16.
    #[error("model weights, {what}: expected f16, found {found:?}")]
    Dtype {
        /// Tensor.
        what: String,
        /// Its type.
        found: Dtype,
    },
    /// The output projection has its own matrix.
    #[error("model config.json: tie_word_embeddings is false, but this decoder uses the embedding for its logits")]
    Untied,
}

/// A parsed weights file.
pub(super) struct Weights<'a>(SafeTensors<'a>);

impl<'a> Weights<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Weights<'a>, WeightsError> {
        SafeTensors::deserialize(bytes)
            .map(Weights)
            .map_err(|source| WeightsError::File { what: "header".into(), source })
    }

    /// Return the tensor's elements in row-major order.
    pub(super) fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let view = self.0.tensor(name).map_err(|source| WeightsError::File { what: name.to_owned(), source })?;
        if view.dtype() != Dtype::F16 {
            return Err(WeightsError::Dtype { what: name.to_owned(), found: view.dtype() });
        }
        if view.shape() != shape {
            return Err(WeightsError::Shape {
                what: name.to_owned(),
                expected: shape.to_vec(),
                found: view.shape().to_vec(),
            });
        }
        let halves: Vec<f16> = view.data().chunks_exact(2).map(|pair| f16::from_le_bytes([pair[0], pair[1]])).collect();
        Ok(halves.to_f32_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::model::WEIGHTS;

    #[test]
    fn a_file_that_is_cut_short_is_refused() {
        assert!(matches!(Weights::parse(&WEIGHTS[..WEIGHTS.len() - 2]), Err(WeightsError::File { .. })));
        assert!(matches!(Weights::parse(b"not a weights file"), Err(WeightsError::File { .. })));
    }

    #[test]
    fn a_wrong_shape_and_a_missing_tensor_are_named() {
        let weights = Weights::parse(WEIGHTS).unwrap();
        let error = weights.tensor("model.norm.weight", &[191]).unwrap_err().to_string();
        assert!(error.contains("model.norm.weight") && error.contains("[191]") && error.contains("[192]"), "{error}");
        let error = weights.tensor("model.norm.bias", &[192]).unwrap_err().to_string();
        assert!(error.contains("model.norm.bias"), "{error}");
    }
}

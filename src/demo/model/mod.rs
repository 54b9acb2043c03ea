//! A Llama-layout decoder, small and exact: what the demo's engine computes.
//!
//! Every output element is a sum in one fixed order, whatever the size of the batch, of a tile or of a prefill chunk:
//! two runs over the same tokens give the same bits, so any difference between them comes from the KV that they read.
//! The loops are written over fixed-size arrays so that the compiler vectorises them for the target's baseline.
//!
//! Called by `engine`. Reads and writes KV only through [`super::kv::KvStore`]; knows nothing of tiers, clients or processes.

mod config;
mod decoder;
mod linear;
pub(crate) mod math;
mod rope;
mod weights;

#[cfg(test)]
mod tests;

pub use config::{BOS, Config};
pub use decoder::{Decoder, Scratch};
pub use weights::WeightsError;

/// `config.json` of the model that comes with the demo.
pub const CONFIG_JSON: &[u8] = include_bytes!("../assets/config.json");
/// `model.safetensors` of the model that comes with the demo (f16, 2.4 M parameters).
pub const WEIGHTS: &[u8] = include_bytes!("../assets/model.safetensors");

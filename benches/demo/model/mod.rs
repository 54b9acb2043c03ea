//! A small decoder in Llama layout with a fixed order of operations: the computation of the demo's engine.
//!
//! Every output element is a sum in a fixed order, independent of the sizes of batch, tile and prefill chunk. Two runs over the
//! same tokens give the same bits, so any difference comes from the KV that they read. The loops use fixed-size arrays so that the
//! compiler vectorises them for the target's baseline.
//!
//! Called by `engine`. Accesses KV only through [`super::kv::KvStore`]; does not depend on tiers, clients or processes.

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

/// `config.json` of the built-in model.
pub const CONFIG_JSON: &[u8] = include_bytes!("../assets/config.json");
/// `model.safetensors` of the built-in model (f16, 2.4 M parameters).
pub const WEIGHTS: &[u8] = include_bytes!("../assets/model.safetensors");

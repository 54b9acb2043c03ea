//! `kvtide demo`: an engine process decodes a trained model over real text, its KV held by kvtide in two tiers, and every
//! logit is compared bit for bit with a run over a plain array.
//!
//! This room is an engine, as any engine would be written: it uses the client crate and nothing of the daemon's inside. The
//! daemon's shell calls [`run`] and `engine`; nothing else may call in here.

pub mod attention;
pub mod kv;
pub mod model;

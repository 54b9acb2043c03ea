//! CUDA for the engine's side: driver probe, device memory, streams, copies, and the kernels that read KV through page tables.
//!
//! Used by `kvtide-ffi` behind its feature `cuda`, and by nobody else. The only user of cudarc: a machine without a driver gets an
//! error value, never a panic. Knows layouts from the wire; knows neither the daemon nor the agent's protocol.

pub mod launch;
pub mod params;
pub mod reference;

//! Basis of a simulation: randomness from one seed, simulated time, and the trace that identifies a run.
//!
//! Any module of this crate may use it; it does not depend on kvtide.

mod queue;
mod rng;
mod trace;

pub use queue::Queue;
pub use rng::Rng;
pub use trace::{Trace, mix};

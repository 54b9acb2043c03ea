//! What a simulation stands on: randomness from one seed, simulated time, and the trace that identifies a run.
//!
//! Anything in this crate may use it; it knows nothing of kvtide.

mod queue;
mod rng;
mod trace;

pub use queue::Queue;
pub use rng::Rng;
pub use trace::{Trace, mix};

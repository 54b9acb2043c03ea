//! Which pages the next step will read: attention seen so far in, predicted attention out.
//!
//! Lives here: what is remembered of a page, how that becomes a predicted share of a plane's attention, the fit of that
//! prediction while it runs, and prior work's ways to rank pages, by name. The planner calls it and says which pages are worth a look; it knows blocks,
//! planes and shares of attention and nothing of tiers, sequences, sessions or time. It is deterministic, allocates only at construction, and a wrong
//! prediction costs time, never a result.

mod fit;
pub(crate) mod float;
mod page;
mod predictor;
mod rank;
mod scoring;

pub use page::{Pages, Seen, TURNS};
pub use predictor::{Config, Fresh, Predictor};
pub use scoring::{Estimate, Kind, Scoring};

#[cfg(test)]
mod tests;

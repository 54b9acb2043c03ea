//! Attention prediction: from the attention seen so far, predicts which pages the next step will read.
//!
//! It contains the values stored per page, the prediction of a page's share of a plane's attention, the online fit of that
//! prediction, and rankings from prior work, by name. The planner calls it and decides which pages to evaluate. It knows blocks,
//! planes and shares of attention, and nothing of tiers, sequences, sessions or time. It is deterministic and allocates only at
//! construction. A wrong prediction costs time and never changes a result.

mod fit;
pub(crate) mod float;
mod page;
mod predictor;
mod rank;
mod scoring;

use kvtide_types::{ScoreKind, Scoring};
pub use page::{Pages, Seen, TURNS};
pub use predictor::{Config, Fresh, Predictor};
pub use scoring::Estimate;

#[cfg(test)]
mod tests;

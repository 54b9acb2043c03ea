//! Attention prediction: from the attention seen so far, predicts which pages the next step will read.
//!
//! It contains the values stored per page, the prediction of a page's share of a plane's attention, and the online fit of that
//! prediction. The planner calls it and decides which pages to evaluate. It knows blocks, planes and shares of attention, and nothing
//! of tiers, sequences, sessions or time. It is deterministic and allocates only at construction. A wrong prediction costs time and
//! never changes a result.

mod fit;
pub(crate) mod float;
mod page;
mod predictor;

use kvtide_types::ScoreKind;
pub use page::{Pages, Seen, TURNS};
pub use predictor::{Fresh, Predictor};

#[cfg(test)]
mod tests;

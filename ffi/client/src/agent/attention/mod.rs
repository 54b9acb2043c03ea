//! Attention data: reading contracts, digests of keys, attention shares of pages, and the choice of the pages that a step
//! reads.
//!
//! - [`Contract`]: the reading contract of a sequence.
//! - [`Digests`]: digests of pages' keys, kept after the pages have left tier 0.
//! - [`History`]: the attention shares that pages had.
//! - `pick`: chooses the pages of an `approx` step.
//! - `estimate`: estimates the attention that an `approx` step lost.
//!
//! Called by lanes and channels of `crate::client`. Depends on pages and shares only: it knows no frames, no daemon, and no
//! rule for moving pages.

mod digests;
mod estimate;
mod history;
mod keys;
mod memory;
mod pick;
#[cfg(test)]
mod real;
mod score;

pub use digests::{DigestOptions, Digests};
pub use estimate::{Lost, estimate};
pub use history::History;
pub use keys::{Element, KeyLayout};
pub use kvtide_wire::entry::Contract;
pub use memory::Memory;
pub use pick::{Candidate, Picker, RECENT, SINKS};
pub use score::{Heads, Known, Scorer, group_of};

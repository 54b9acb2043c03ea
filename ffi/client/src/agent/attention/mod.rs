//! What attention says: reading contracts, digests of keys, the share that each page had, and which pages a step reads for them.
//!
//! [`Contract`] is a sequence's, [`Digests`] hold what is kept of pages' keys after the pages have left, [`History`] what their
//! shares of attention were; `pick` chooses the pages of an `approx` step and `estimate` says what it lost by that, `proof` finds
//! those that a `bounded` one may skip. Called by lanes and channels of `crate::client`. Knows pages and shares; never frames, the
//! daemon, or who decides what moves.

mod contract;
mod digests;
mod estimate;
mod history;
mod keys;
mod memory;
mod pick;
mod proof;
#[cfg(test)]
mod real;
mod score;

pub use contract::Contract;
pub use digests::{DigestOptions, Digests};
pub use estimate::{Lost, estimate};
pub use history::History;
pub use keys::{Element, KeyLayout};
pub use memory::Memory;
pub use pick::{Candidate, Picker, RECENT, SINKS};
pub use proof::Proof;
pub use score::{Heads, Known, Scorer, bounds, group_of};

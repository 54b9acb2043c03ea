//! Index of the cache: which blocks are cached, in which order they are evicted, and why others are not cached.
//!
//! - `table`: entries by hash, their ancestors and descendants, pinned prefixes
//! - `entry`: record of an entry
//! - `shard_copy`: a shard's copy of an entry, in a block or only in a slot
//! - `evict`: the eviction order of unreferenced entries
//! - `absences`: history of blocks that are not cached
//! - `steps`: steps of all these, counted in tests
//!
//! All fields are private to this folder. It knows entries by id, and copies by the id of a block or slot. It does not know pages, tiers,
//! sessions or requests: its callers decide what is evicted, and tell it when copies gain or lose a block, a reference or a use.

mod absences;
mod entry;
pub mod evict;
mod shard_copy;
pub(crate) mod steps;
mod table;

pub use absences::Absence;
pub(crate) use evict::Residency;
pub(crate) use shard_copy::{Link, ShardCopy};
pub(crate) use table::{CopyCounts, Index, WITH_BLOCK, WITH_SLOT};

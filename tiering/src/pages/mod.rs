//! Tables of all locations: pages, blocks, tier-0 and host frames, and the index of cache entries.
//!
//! The tables keep themselves consistent and know nothing of requests, plans or jobs. Their callers (`space`, `plan`,
//! `sequences`) decide. All are dense vectors; ids are indices.

mod absences;
mod block;
mod frame;
mod host;
mod index;
mod page;
mod shard_copy;

pub use absences::Absence;
pub(crate) use absences::Absences;
pub(crate) use block::{Block, BlockState, Blocks, PersistState};
pub(crate) use frame::{Frame, FrameState, On, Tier0Class};
pub(crate) use host::{Host, HostOn, QUARANTINED, SLABS_MAX};
pub(crate) use index::{Index, Listed, words_of};
pub(crate) use page::Page;
pub(crate) use shard_copy::{IDS_MAX, Link, ShardCopy};

/// No session.
pub(crate) const NO_SESSION: u16 = u16::MAX;
/// No lane.
pub(crate) const NO_LANE: u16 = u16::MAX;

//! Tables of all locations but host: pages, blocks, tier-0 frames, NVMe slots and transfers, and the index of cache entries.
//!
//! The tables keep themselves consistent and know nothing of requests, plans or jobs. Their callers (`space`, `plan`,
//! `sequences`) decide. All are dense vectors; ids are indices.

mod absences;
mod block;
mod disk;
mod frame;
mod index;
mod log_request;
mod page;
mod shard_copy;
mod transfer;

pub use absences::Absence;
pub(crate) use absences::Absences;
pub(crate) use block::{Block, BlockState, Blocks, PersistState};
pub(crate) use disk::{Disk, Logged, Place, Standing};
pub(crate) use frame::{Frame, FrameState, On, Tier0Class};
pub(crate) use index::{Index, Listed, words_of};
pub(crate) use log_request::{LogRequest, LogRequestKind, LogRequests};
pub(crate) use page::Page;
pub(crate) use shard_copy::{IDS_MAX, Link, ShardCopy};
pub(crate) use transfer::{Transfer, Transfers};

/// No session.
pub(crate) const NO_SESSION: u16 = u16::MAX;
/// No lane.
pub(crate) const NO_LANE: u16 = u16::MAX;

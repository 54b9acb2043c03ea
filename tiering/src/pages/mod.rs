//! Tables of pages, blocks, tier-0 frames, NVMe slots and transfers.
//!
//! The tables keep themselves consistent and know nothing of requests, plans or jobs. Their callers (`space`, `plan`,
//! `sequences`) decide. All are dense vectors; ids are indices.

mod block;
mod disk;
mod frame;
mod log_request;
mod page;
mod transfer;

pub(crate) use crate::index::{Link, ShardCopy};
pub(crate) use block::{Block, BlockState, Blocks, PersistState};
pub(crate) use disk::{Disk, Logged, Place, Standing};
pub(crate) use frame::{Frame, FrameState, On, Tier0Class};
pub(crate) use log_request::{LogRequest, LogRequestKind, LogRequests};
pub(crate) use page::Page;
pub(crate) use transfer::{Transfer, Transfers};

/// No session.
pub(crate) const NO_SESSION: u16 = u16::MAX;
/// No lane.
pub(crate) const NO_LANE: u16 = u16::MAX;

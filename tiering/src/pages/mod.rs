//! Tables of pages, blocks and tier-0 frames.
//!
//! The tables keep themselves consistent and know nothing of requests, plans or jobs. Their callers (`space`, `plan`,
//! `sequences`) decide. All are dense vectors; ids are indices.

mod block;
mod frame;
mod page;

pub(crate) use crate::index::{Link, ShardCopy};
pub(crate) use block::{Block, BlockState, Blocks, PersistState};
pub(crate) use frame::{Frame, FrameState, On, Tier0Class};
pub(crate) use page::Page;

/// No session.
pub(crate) const NO_SESSION: u16 = u16::MAX;
/// No lane.
pub(crate) const NO_LANE: u16 = u16::MAX;

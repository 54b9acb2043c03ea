//! Pages, blocks, the frames of both tiers, and the index of published content: the tables that say where everything is.
//!
//! The tables keep themselves consistent and know nothing of sessions' requests, plans or jobs; those who call them (`space`,
//! `plan`, `sequences`) decide. All are dense vectors; ids are indices.

mod block;
mod frame;
mod host;
mod index;
mod page;

pub(crate) use block::{Block, BlockState, Blocks};
pub(crate) use frame::{Frame, FrameState, On, Tier0Class};
pub(crate) use host::Host;
pub(crate) use index::Index;
pub(crate) use page::Page;

/// No session.
pub(crate) const NO_SESSION: u16 = u16::MAX;
/// No lane.
pub(crate) const NO_LANE: u16 = u16::MAX;

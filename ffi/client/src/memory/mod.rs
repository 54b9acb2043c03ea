//! Tier 0 and the host slabs as memory: allocation, maps, copies.
//!
//! [`TierMemory`] is the seam behind which memory differs: [`CpuMemory`] copies with the caller's own thread, a device would
//! start transfers on its streams and be polled for their end. Called by the agent's pump alone. Knows frames and slabs;
//! never pages, tables or the daemon.

mod blocks;
mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod frames;
mod host;
mod names;
mod slabs;
mod stream;
mod tier0;

pub use blocks::{EngineBlocks, Owner, Piece};
pub use cpu::CpuMemory;
pub use frames::ClassRoom;
pub(crate) use names::{Held, Names};
pub use names::{MEMBERS_MAX, UNNAMED};
pub use tier0::Tier0;

use crate::{
    Result,
    agent::protocol::{Copied, CopyOp, Place},
    client::DeviceCopies,
};
use kvtide_wire::{hello::Slab, status::Status};
use std::{os::fd::OwnedFd, sync::Arc, time::Instant};

/// Memory of one session.
///
/// A copy that was started owns both its places until `poll` has reported its end: callers overwrite, publish, unmap nothing
/// of it before.
pub trait TierMemory: Send {
    /// Tier 0.
    fn tier0(&self) -> &Arc<Tier0>;

    /// Maps a slab of host frames.
    ///
    /// # Errors
    /// The memory that came with it is not what it says, or cannot be mapped; or the slab is known already.
    fn add_slab(&mut self, slab: &Slab, memfd: OwnedFd) -> Result<()>;

    /// Unmaps a slab, after the copies that use it have ended.
    fn remove_slab(&mut self, slab: u32);

    /// Whether a slab of this id is mapped.
    fn has_slab(&self, slab: u32) -> bool;

    /// Whether this host frame is mapped and holds pages of this size class.
    fn knows(&self, class: usize, slab: u32, slot: u32) -> bool;

    /// The engine's own memory is there from now on, or none is. On return nothing touches what was there before; copies that were started
    /// and have not begun go on with what is there then: the caller has seen to it that there are none. Returns what was there before.
    ///
    /// # Errors
    /// `Invalid`: this memory copies nothing there.
    fn set_blocks(&mut self, blocks: Option<EngineBlocks>) -> std::result::Result<Option<EngineBlocks>, Status>;

    /// A block's bytes in a plane, of memory that came with [`EngineBlocks::allocate`].
    fn own_block(&mut self, block: u32, plane: u16) -> Option<&mut [u8]>;

    /// Starts copies, in order. Returns how many were started; the others are to be offered again. One whose places do not
    /// exist ends as a failure.
    ///
    /// # Errors
    /// `Device`: the memory is not there any more, and the session with it.
    fn start(&mut self, copies: &[CopyOp]) -> std::result::Result<usize, Status>;

    /// Makes progress and reports copies that ended, with the bytes that arrived and, where [`CopyOp::canary`] asks for it, the
    /// digest of the page's bytes in tier 0 once they had landed. Returns how many.
    ///
    /// # Errors
    /// As [`TierMemory::start`].
    fn poll(
        &mut self,
        ended: &mut dyn FnMut(&CopyOp, std::result::Result<Copied, Status>),
    ) -> std::result::Result<usize, Status>;

    /// Copies started and not yet reported.
    fn in_flight(&self) -> usize;

    /// Waits until nothing touches tier 0 any more of what was started or enqueued so far: copies, and what lanes had enqueued
    /// when they gave pages up. Reports nothing.
    ///
    /// # Errors
    /// `TimedOut`. As [`TierMemory::start`].
    fn settle(&mut self, deadline: Instant) -> std::result::Result<(), Status>;

    /// How a device's copies are made; `None`: the host makes them.
    fn device_copies(&self) -> Option<DeviceCopies>;

    /// What was counted since the last call.
    fn take_counts(&mut self) -> Counts;
}

/// What memory counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of host slabs that were registered with a device.
    pub registered_bytes: u64,
    /// Nanoseconds that it took.
    pub registered_ns: u64,
}

/// The host frame of a copy.
pub(crate) fn host_place(op: &CopyOp) -> Option<(u32, u32)> {
    match (op.from, op.to) {
        (Place::Host { slab, slot }, _) | (_, Place::Host { slab, slot }) => Some((slab, slot)),
        _ => None,
    }
}

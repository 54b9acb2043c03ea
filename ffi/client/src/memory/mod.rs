//! Tier 0 and host slabs as memory: allocation, mappings, copies.
//!
//! [`TierMemory`] abstracts the kind of memory: [`CpuMemory`] copies on the calling thread; a device starts transfers on its
//! streams and is polled for their completion. Called only by the agent's copy loop. It knows frames and slabs, but not pages,
//! tables or the daemon.

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
pub(crate) use names::{Held, Numbering};
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
/// A started copy owns its source and its destination until `poll` has reported its end. Until then callers must not overwrite, map
/// or unmap either of them.
pub trait TierMemory: Send {
    /// Tier 0.
    fn tier0(&self) -> &Arc<Tier0>;

    /// Map a slab of host frames.
    ///
    /// # Errors
    /// The memory passed with it does not match its description, or cannot be mapped; or the slab is known already.
    fn add_slab(&mut self, slab: &Slab, memfd: OwnedFd) -> Result<()>;

    /// Unmap a slab, after the copies that use it have ended.
    fn remove_slab(&mut self, slab: u32);

    /// Return whether a slab with this id is mapped.
    fn has_slab(&self, slab: u32) -> bool;

    /// Return whether this host frame is mapped and holds pages of this size class.
    fn knows(&self, class: usize, slab: u32, slot: u32) -> bool;

    /// Set or remove the engine's own blocks. Return the earlier blocks, which nothing accesses any more. The caller must have
    /// checked that no started copy is still waiting to begin: it would use the new blocks.
    ///
    /// # Errors
    /// `Invalid`: this memory does not copy to engine blocks.
    fn set_blocks(&mut self, blocks: Option<EngineBlocks>) -> std::result::Result<Option<EngineBlocks>, Status>;

    /// Return a block's bytes in a plane, in memory from [`EngineBlocks::allocate`].
    fn own_block(&mut self, block: u32, plane: u16) -> Option<&mut [u8]>;

    /// Return how many jobs a round takes at most. A round stays short, and a batch of copies is worth its calls.
    fn round_jobs(&self) -> usize;

    /// Start copies, in order. Return how many were started; pass the others again later. A copy is reported as failed if its
    /// source or destination does not exist.
    ///
    /// # Errors
    /// `Device`: the device's memory is lost, which ends the session.
    fn start(&mut self, copies: &[CopyOp]) -> std::result::Result<usize, Status>;

    /// Make progress and report copies that ended: the number of bytes copied and, if [`CopyOp::sampled`] is set, the digest of the
    /// page's bytes in tier 0 after the copy. Return how many were reported.
    ///
    /// # Errors
    /// As [`TierMemory::start`].
    fn poll(
        &mut self,
        ended: &mut dyn FnMut(&CopyOp, std::result::Result<Copied, Status>),
    ) -> std::result::Result<usize, Status>;

    /// Return the number of copies started and not yet reported.
    fn in_flight(&self) -> usize;

    /// Wait until nothing that was started or enqueued so far accesses tier 0 any more: copies, and work that lanes had enqueued
    /// when they gave pages up. Reports nothing.
    ///
    /// # Errors
    /// `TimedOut`. As [`TierMemory::start`].
    fn settle(&mut self, deadline: Instant) -> std::result::Result<(), Status>;

    /// Return how a device makes its copies; `None`: the host makes them.
    fn device_copies(&self) -> Option<DeviceCopies>;

    /// Return the counts since the last call.
    fn take_counts(&mut self) -> Counts;
}

/// Counts of a session's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of host slabs that were registered with a device.
    pub registered_bytes: u64,
    /// Nanoseconds spent registering them.
    pub registered_ns: u64,
}

/// Return the host frame of a copy.
pub(crate) fn host_place(op: &CopyOp) -> Option<(u32, u32)> {
    match (op.from, op.to) {
        (Place::Host { slab, slot }, _) | (_, Place::Host { slab, slot }) => Some((slab, slot)),
        _ => None,
    }
}

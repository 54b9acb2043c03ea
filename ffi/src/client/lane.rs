//! A lane: one ordered stream of engine work, and its view of the page table.

use super::{Error, Result, SeqId, options::FrameId};
use kvtide_wire::status::Status;

pub use crate::agent::protocol::step::{Ready, StepSeq};

/// What a boundary found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Every page that this plane of the step needs is readable through the table, and none was handed out before.
    All,
    /// [`Lane::ready`] holds `count` (at least one) pages that are readable now and were not handed out before for this step
    /// and plane; after `last` there are no more.
    Part {
        /// Pages in [`Lane::ready`].
        count: usize,
        /// Whether the plane is complete with them.
        last: bool,
    },
}

/// One ordered stream of engine work. Owned by one thread at a time.
pub struct Lane {
    _private: (),
}

impl Lane {
    /// Begins a step over `seqs`; each names the length that attention covers at this step (the new tokens included), which
    /// must be reserved already. A sequence is in at most one lane's step at a time. Sends a message only if something that
    /// the step needs is not resident.
    ///
    /// # Errors
    /// `State`: the lane's step has begun already, or a sequence is in another lane's step. `NotFound`: no such sequence.
    /// `Range`: more tokens than reserved. `Lost`: a page of a sequence exists nowhere any more. `Daemon`, `TimedOut`, `Fork`.
    pub fn begin(&mut self, seqs: &[StepSeq]) -> Result<()> {
        let _ = seqs;
        Err(Error::call("begin a step on lane", 0, Status::Daemon))
    }

    /// A boundary before the pages of `plane` are read: applies what changed in the table, and reports what is readable.
    /// Planes come in rising order within a step; a plane is asked for again until it is complete. Waits (within the
    /// session's timeout) only if a needed page is missing and no other became readable.
    ///
    /// # Errors
    /// `State`: no step has begun, the plane is complete, or a later plane was begun. `Range`: no such plane. `Lost`, `Io`,
    /// `TimedOut`, `Daemon`: a page cannot be had; the step stays open, and the boundary may be tried again.
    pub fn boundary(&mut self, plane: u16) -> Result<Pass> {
        Err(Error::call("pass a boundary of plane", u64::from(plane), Status::Daemon))
    }

    /// The pages that the last boundary handed out, in order of sequence position and block index.
    #[must_use]
    pub fn ready(&self) -> &[Ready] {
        &[]
    }

    /// Ends the step, complete or not: this lane reads no frame until its next `begin`.
    ///
    /// # Errors
    /// `State`: no step has begun. `Fork`.
    pub fn end(&mut self) -> Result<()> {
        Err(Error::call("end a step on lane", 0, Status::Daemon))
    }

    /// This lane's table: the entry of `block × planes + plane` is 0 (absent) or frame + 1. Its address stays the same for
    /// the lane's life; entries change only within `begin` and `boundary`, and are to be believed between `begin` and `end`.
    #[must_use]
    pub fn table(&self) -> &[u32] {
        &[]
    }

    /// The frame that shows the page of `block` in `plane` in this lane's table, as of its last boundary.
    #[must_use]
    pub fn pte(&self, block: u32, plane: u16) -> Option<FrameId> {
        let _ = (block, plane);
        None
    }

    /// The bytes of a page of a sequence in this lane's step, if it is readable now. Valid until the next call of
    /// `begin`, `boundary` or `end`. `page_bytes` long, 64-byte aligned.
    #[must_use]
    pub fn page(&self, seq: SeqId, index: u32, plane: u16) -> Option<&[u8]> {
        let _ = (seq, index, plane);
        None
    }

    /// The bytes of an unsealed page of a sequence in this lane's step, to be written.
    #[must_use]
    pub fn page_mut(&mut self, seq: SeqId, index: u32, plane: u16) -> Option<&mut [u8]> {
        let _ = (seq, index, plane);
        None
    }
}

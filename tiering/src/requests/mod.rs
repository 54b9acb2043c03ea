//! Requests that could not be answered at once: where each stands, and when it gives up.
//!
//! The tables know neither pages nor plans; `sequences` and `plan` move an op from phase to phase.

mod deadlines;

pub(crate) use deadlines::Deadlines;

use crate::api::{NONE, Status};
use crate::lists::{Linked, Links, List};
use crate::pages::NO_LANE;
use crate::sessions::Pin;
use serde::{Deserialize, Serialize};

/// What a pending request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// New blocks for a sequence, or (`seq` NONE) for the session's reserve.
    Reserve,
    /// Copies of the parent's unsealed blocks, then the child.
    Fork,
    /// A copy of the block that the cut is inside of, then the cut.
    Truncate,
    /// Blocks to attach from the index.
    Map,
    /// Unsealed pages leave tier 0.
    Park,
    /// Unsealed pages come back.
    Resume,
    /// Pages of a range become resident and pinned.
    Acquire,
    /// One page becomes resident.
    Fault,
    /// One block with pages that are already in tier 0.
    Declare,
    /// Published blocks are stored, or durable.
    Publish,
    /// Frames at the end of a tier-0 class become empty.
    Resize,
    /// A prefix to hold for a while.
    Lease,
    /// Blocks into an engine's own.
    Load,
    /// Blocks up into host.
    Fetch,
    /// An engine's blocks into new ones.
    Store,
}

/// Where a pending request stands; each phase but `Jobs` has its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    Free,
    /// Waits for capacity.
    Admission,
    /// Takes frames, one job after another.
    Frames,
    /// Leaves tier 0.
    Leaving,
    /// A fault that waits for its page.
    Fault,
    /// A publish that waits for a record or a flush.
    Keeping,
    /// A resize that waits for frames to become empty.
    Resizing,
    /// Copies between host and an engine's own memory.
    Copying,
    /// All jobs sent; waits for `pending` to reach 0.
    Jobs,
    /// Done; waits for room for its completion.
    Ready,
}

/// One pending request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Op {
    pub links: Links,
    pub channel: u16,
    pub tag: u16,
    pub work: Work,
    pub phase: Phase,
    /// How it will end, when `Ready`; the first error of its jobs before.
    pub status: Status,
    pub seq: u32,
    /// Fork: the child.
    pub child: u32,
    /// Resize: the frames that there were.
    pub first: u32,
    /// Resize: the frames that there shall be.
    pub count: u32,
    /// Resize: the size class.
    pub plane: u16,
    pub planes: u16,
    /// Progress: block (chain element or index) and plane within it. Publish: the content of its last block, until that is stored. Store:
    /// the first of its copies that is not sent.
    pub at: u32,
    pub at_plane: u16,
    /// Fault: the lane and position that wait.
    pub lane: u16,
    /// Publish: the flush that it waits for, counted from 1.
    pub use_pos: u64,
    /// Truncate, fork: tokens of the result. Park: when due. Publish: the level.
    pub tokens: u64,
    /// Jobs in flight that belong to it.
    pub pending: u32,
    /// New blocks, in order, until they are attached.
    pub blocks: List,
    /// Its place among the deadlines, or none.
    pub due_at: u32,
    pub due_us: u64,
    /// Fork, truncate: the block that is copied, held until the end.
    pub source: u32,
    /// Resume: its blocks count as unsealed again. Resize: the class has its new size.
    pub started: bool,
    /// Load, fetch, store: the blocks that it copies; once it is over those that failed.
    pub copies: List,
    /// Load, fetch, store: it is to end with `status` once no job of it is under way.
    pub ending: bool,
    /// Store: the hash of what its first block stands on, 0: nothing.
    pub parent: u128,
    /// Store: the hash of what its first new block stands on, which stays while it is under way; 0: nothing.
    pub above: u128,
}

impl Default for Op {
    fn default() -> Self {
        Op {
            links: Links::default(),
            channel: 0,
            tag: 0,
            work: Work::Reserve,
            phase: Phase::Free,
            status: Status::Ok,
            seq: NONE,
            child: NONE,
            first: 0,
            count: 0,
            plane: 0,
            planes: 0,
            at: 0,
            at_plane: 0,
            lane: NO_LANE,
            use_pos: 0,
            tokens: 0,
            pending: 0,
            blocks: List::default(),
            due_at: NONE,
            due_us: 0,
            source: NONE,
            started: false,
            copies: List::default(),
            ending: false,
            parent: 0,
            above: 0,
        }
    }
}

impl Op {
    /// The range of an acquire.
    pub fn range(&self) -> Pin {
        Pin { seq: self.seq, plane: self.plane, planes: self.planes, first: self.first, count: self.count }
    }
}

impl Linked for Op {
    fn links(&self) -> &Links {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// Pending requests of a session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ops {
    pub recs: Vec<Op>,
    free: List,
    pub admission: List,
    pub frames: List,
    pub leaving: List,
    pub faults: List,
    pub keeping: List,
    pub resizing: List,
    pub copying: List,
    jobs: List,
    pub ready: List,
}

impl Ops {
    pub fn new(count: u32) -> Ops {
        let mut ops = Ops { recs: vec![Op::default(); count as usize], ..Ops::default() };
        for i in 0..count {
            ops.free.push_back(&mut ops.recs, i);
        }
        ops
    }

    pub fn alloc(&mut self, op: Op) -> Option<u32> {
        let i = self.free.pop_front(&mut self.recs)?;
        self.recs[i as usize] = Op { phase: Phase::Jobs, ..op };
        self.jobs.push_back(&mut self.recs, i);
        Some(i)
    }

    fn list(&mut self, phase: Phase) -> &mut List {
        match phase {
            Phase::Free => &mut self.free,
            Phase::Admission => &mut self.admission,
            Phase::Frames => &mut self.frames,
            Phase::Leaving => &mut self.leaving,
            Phase::Fault => &mut self.faults,
            Phase::Keeping => &mut self.keeping,
            Phase::Resizing => &mut self.resizing,
            Phase::Copying => &mut self.copying,
            Phase::Jobs => &mut self.jobs,
            Phase::Ready => &mut self.ready,
        }
    }

    /// Moves an op to the end of a phase's list.
    pub fn enter(&mut self, i: u32, phase: Phase) {
        let old = self.recs[i as usize].phase;
        let mut list = *self.list(old);
        list.remove(&mut self.recs, i);
        *self.list(old) = list;
        self.recs[i as usize].phase = phase;
        let mut list = *self.list(phase);
        list.push_back(&mut self.recs, i);
        *self.list(phase) = list;
    }

    /// Ops that are not free.
    pub fn live(&self) -> u32 {
        self.recs.len() as u32 - self.free.len
    }
}

impl std::ops::Index<u32> for Ops {
    type Output = Op;
    fn index(&self, i: u32) -> &Op {
        &self.recs[i as usize]
    }
}

impl std::ops::IndexMut<u32> for Ops {
    fn index_mut(&mut self, i: u32) -> &mut Op {
        &mut self.recs[i as usize]
    }
}

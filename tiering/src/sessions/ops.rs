//! Pending requests (ops): requests that could not complete at once, with their phase and deadline.
//!
//! The tables know neither pages nor plans: `paging` and `block_api` move an op from phase to phase.

use crate::api::{NONE, Status};
use crate::blocks::NO_LANE;
use crate::lists::{Links, List, linked};
use serde::{Deserialize, Serialize};

/// Kind of a pending request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Allocate new blocks for a sequence.
    Reserve,
    /// Copy the parent's unsealed blocks, then create the child.
    Fork,
    /// Copy the block that contains the cut, then truncate.
    Truncate,
    /// Attach cached blocks.
    AttachPrefix,
    /// Move unsealed pages out of tier 0.
    Park,
    /// Move unsealed pages back into tier 0.
    Resume,
    /// Make the pages of a range resident and pin them.
    Acquire,
    /// Make one page resident.
    Fault,
    /// Declare one block with pages that are already in tier 0.
    Declare,
    /// Wait until published blocks are stored, or durable.
    Publish,
    /// Empty the frames at the end of a tier-0 class.
    Resize,
    /// Guarantee a number of blocks.
    Guarantee,
    /// Pin a prefix for a limited time.
    Lease,
    /// Copy blocks into the engine's own memory.
    Load,
    /// Copy blocks by their hashes into a relay's own memory.
    LoadHashed,
    /// Copy blocks out of the engine's own memory into new blocks.
    Store,
    /// Wait for events of the feed.
    Follow,
    /// List a part of the cache.
    List,
}

impl Work {
    /// Return whether it is a request of the block API; the others are requests of paging.
    pub fn is_block_api(self) -> bool {
        use Work::{Follow, Lease, List, Load, LoadHashed, Store};
        matches!(self, Lease | Load | LoadHashed | Store | Follow | List)
    }
}

/// Phase of a pending request. Each phase has its own list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    Free,
    /// Waits for capacity.
    Admission,
    /// Takes frames, one job after another.
    Frames,
    /// Waits for its pages to leave tier 0.
    Parking,
    /// A fault that waits for its page.
    Fault,
    /// A publish that waits for a record or a flush.
    Persisting,
    /// A resize that waits for frames to become empty.
    Resizing,
    /// Waits for an event of the feed.
    Following,
    /// Copies between host and an engine's own memory.
    Copying,
    /// All jobs are sent; waits until `pending` is 0.
    Jobs,
    /// Ended; waits for room for its completion.
    Ready,
}

/// An acquired range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pin {
    pub seq: u32,
    pub plane: u16,
    pub planes: u16,
    pub first: u32,
    pub count: u32,
}

/// A pending request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Op {
    pub links: Links,
    pub channel: u16,
    pub tag: u16,
    pub work: Work,
    pub phase: Phase,
    /// Final status if `Ready`; before that, the first error of its jobs.
    pub status: Status,
    pub seq: u32,
    /// Fork: the child.
    pub child: u32,
    /// Resize: the previous number of frames. Load: index of the first block in its sequence.
    pub first: u32,
    /// Resize: the requested number of frames. Guarantee: of blocks.
    pub count: u32,
    /// Resize: the size class.
    pub plane: u16,
    pub planes: u16,
    /// Progress: block (chain element or index) and plane within it. Publish: the cache entry of its last block, until that is
    /// stored. Store: the first of its copies that is not sent.
    pub at: u32,
    pub at_plane: u16,
    /// Fault: the waiting lane; `use_pos` is the position.
    pub lane: u16,
    /// Publish: the number of the flush that it waits for, counted from 1. Fault: the position.
    pub use_pos: u64,
    /// Fault: the first use of the lane that does not end before it has the page.
    pub held_from: u64,
    /// Truncate, fork: tokens of the result. Park: due time in microseconds. Publish: the level. Follow: number of the event. List: the cursor.
    pub tokens: u64,
    /// Attach prefix: a lookup has counted what was found.
    pub looked_up: bool,
    /// Number of the op's jobs in flight.
    pub pending: u32,
    /// New blocks, in order, until they are attached.
    pub blocks: List,
    /// Index in the deadline heap, or `NONE`.
    pub due_at: u32,
    pub due_us: u64,
    /// Fork, truncate: the block to copy, referenced until the end.
    pub source: u32,
    /// Resume: its blocks count as unsealed again. Resize: the class has its new size.
    pub started: bool,
    /// Load, load hashed, store: copies of the request; after the end, those that failed.
    pub copies: List,
    /// Load, load hashed, store: the request ends with `status` when none of its jobs is in flight.
    pub ending: bool,
    /// Store: hash of the parent of its first block; 0: none.
    pub parent: u128,
    /// Store: hash of the parent of its first new block, which is not dropped while the store is in progress; 0: none.
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
            held_from: 0,
            tokens: 0,
            looked_up: false,
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
    /// Return the range of an acquire.
    pub fn range(&self) -> Pin {
        Pin { seq: self.seq, plane: self.plane, planes: self.planes, first: self.first, count: self.count }
    }
}

linked!(Op.links);

/// Pending requests of a session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ops {
    pub recs: Vec<Op>,
    free: List,
    pub admission: List,
    pub frames: List,
    pub parking: List,
    pub faults: List,
    pub persisting: List,
    pub resizing: List,
    pub following: List,
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
            Phase::Parking => &mut self.parking,
            Phase::Fault => &mut self.faults,
            Phase::Persisting => &mut self.persisting,
            Phase::Resizing => &mut self.resizing,
            Phase::Following => &mut self.following,
            Phase::Copying => &mut self.copying,
            Phase::Jobs => &mut self.jobs,
            Phase::Ready => &mut self.ready,
        }
    }

    /// Move an op to the end of a phase's list.
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

    /// Return the number of ops that are not free.
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

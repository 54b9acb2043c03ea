//! Pending requests (ops): requests that could not complete at once, with their phase and deadline.
//!
//! The tables know neither pages nor plans: `paging` and `block_api` move an op from phase to phase.

use super::{Copies, Who, Work};
use crate::api::{NONE, Status};
use crate::lists::{Links, List, linked};
use serde::{Deserialize, Serialize};

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

/// A pending request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Op {
    pub links: Links,
    pub channel: u16,
    pub tag: u16,
    pub phase: Phase,
    /// Final status if `Ready`; before that, the first error of its jobs.
    pub status: Status,
    /// Its sequence, or `NONE`.
    pub seq: u32,
    /// Number of the op's jobs in flight.
    pub pending: u32,
    /// New blocks, in order, until they are attached.
    pub blocks: List,
    /// Index in the deadline heap, or `NONE`.
    pub due_at: u32,
    pub due_us: u64,
    pub work: Work,
}

impl Op {
    fn new(who: Who, seq: u32, work: Work, due_us: u64) -> Op {
        Op {
            links: Links::default(),
            channel: who.channel,
            tag: who.tag,
            phase: Phase::Free,
            status: Status::Ok,
            seq,
            pending: 0,
            blocks: List::default(),
            due_at: NONE,
            due_us,
            work,
        }
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
        let nobody = Who { session: 0, channel: 0, tag: 0 };
        let mut ops = Ops { recs: vec![Op::new(nobody, NONE, Work::Lease, 0); count as usize], ..Ops::default() };
        for i in 0..count {
            ops.free.push_back(&mut ops.recs, i);
        }
        ops
    }

    /// Take an entry for a request; `None` if none is free.
    pub fn alloc(&mut self, who: Who, seq: u32, work: Work, due_us: u64) -> Option<u32> {
        let i = self.free.pop_front(&mut self.recs)?;
        self.recs[i as usize] = Op { phase: Phase::Jobs, ..Op::new(who, seq, work, due_us) };
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

    /// Change the state of a request.
    pub fn set(&mut self, i: u32, state: impl Into<Work>) {
        self.recs[i as usize].work = state.into();
    }

    /// Return the copies of a request; none if it does not copy.
    pub fn copies(&self, i: u32) -> Copies {
        let mut work = self.recs[i as usize].work;
        work.copies().copied().unwrap_or_default()
    }

    /// Change the copies of a request that copies.
    pub fn set_copies(&mut self, i: u32, copies: Copies) {
        if let Some(now) = self.recs[i as usize].work.copies() {
            *now = copies;
        }
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

//! Jobs in flight to one session.

use crate::api::{Job, NONE};
use crate::counters::Reason;
use crate::lists::{Linked, Links, List};
use serde::{Deserialize, Serialize};

/// What a job does; the planner's view of [`Job`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Task {
    Map,
    Load,
    Store,
    Copy,
    LoadCopy,
    Drop,
    Evict,
    Cancel,
    Move,
    /// From an engine's block into a host frame.
    Gather,
    /// The other way.
    Scatter,
}

/// One job slot.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct JobRec {
    pub links: Links,
    pub task: Task,
    pub reason: Reason,
    /// Sent and not done. A slot in use that is not in flight waits in `again`.
    pub in_flight: bool,
    pub live: bool,
    /// Tries that failed.
    pub tries: u8,
    /// High half of its id, so that a stale id is told apart.
    pub generation: u16,
    /// Page that it makes resident, stores or evicts; `Drop`: the block's first page.
    pub page: u32,
    pub frame: u32,
    /// Page that the frame showed.
    pub victim: u32,
    /// Lane and position of the victim's use that must be over first.
    pub after: Option<(u16, u64)>,
    /// Host frame that it reads or writes.
    pub host: u32,
    /// `Copy`, `Move`: source frame. `LoadCopy`: source page. `Cancel`: job id. `Gather`, `Scatter`: the engine's block.
    pub source: u32,
    /// Request that it belongs to.
    pub op: u32,
    /// `Gather`, `Scatter`: which of the request's copies it belongs to.
    pub copy: u32,
    /// A Cancel for it was sent.
    pub canceling: bool,
    /// When it was sent last.
    pub sent_us: u64,
    /// It did not end in time: see `space::late`.
    pub late: bool,
}

impl Default for JobRec {
    fn default() -> Self {
        JobRec {
            links: Links::default(),
            task: Task::Map,
            reason: Reason::Demand,
            in_flight: false,
            live: false,
            tries: 0,
            generation: 0,
            page: NONE,
            frame: NONE,
            victim: NONE,
            after: None,
            host: NONE,
            source: NONE,
            op: NONE,
            copy: NONE,
            canceling: false,
            sent_us: 0,
            late: false,
        }
    }
}

impl JobRec {
    /// Whether the job waits for something that may come only after the use at `pos` of a lane: another lane's use, which may
    /// be carried by the very same thread, or a later one of the lane itself.
    pub fn too_late(&self, lane: u16, pos: u64) -> bool {
        self.after.is_some_and(|(user, after)| user != lane || after > pos)
    }
}

impl Linked for JobRec {
    fn links(&self) -> &Links {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// The job slots of a session; as many as its job ring is deep.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Jobs {
    pub recs: Vec<JobRec>,
    free: List,
    /// Slots that must be sent again, with another frame or the same.
    pub again: List,
}

impl Jobs {
    pub fn new(count: u32) -> Jobs {
        let mut jobs = Jobs { recs: vec![JobRec::default(); count as usize], ..Jobs::default() };
        for i in 0..count {
            jobs.free.push_back(&mut jobs.recs, i);
        }
        jobs
    }

    /// Whether any job is in flight, or waits to be sent again.
    pub fn any(&self) -> bool {
        (self.free.len as usize) < self.recs.len()
    }

    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether one is free beside the one that is left for jobs that give no page a frame, which those that do may wait for.
    pub fn has_two_free(&self) -> bool {
        self.free.len > 1
    }

    pub fn free_slots(&self) -> u32 {
        self.free.len
    }

    /// Takes a slot. The caller checked that one is free.
    pub fn alloc(&mut self, job: JobRec) -> u32 {
        let slot = self.free.pop_front(&mut self.recs).expect("callers check for a free slot before they plan a job");
        let generation = self.recs[slot as usize].generation;
        self.recs[slot as usize] = JobRec { live: true, generation, ..job };
        slot
    }

    pub fn release(&mut self, slot: u32) {
        let rec = &mut self.recs[slot as usize];
        *rec = JobRec { generation: rec.generation, ..JobRec::default() };
        self.free.push_back(&mut self.recs, slot);
    }

    /// A fresh id for the slot's next trip.
    pub fn launch(&mut self, slot: u32, now_us: u64) -> u32 {
        let rec = &mut self.recs[slot as usize];
        rec.generation = rec.generation.wrapping_add(1);
        (rec.in_flight, rec.sent_us) = (true, now_us);
        u32::from(rec.generation) << 16 | slot
    }

    pub fn id(&self, slot: u32) -> u32 {
        u32::from(self.recs[slot as usize].generation) << 16 | slot
    }

    /// The slot of a job in flight.
    pub fn slot_of(&self, id: u32) -> Option<u32> {
        let slot = id & 0xffff;
        let rec = self.recs.get(slot as usize)?;
        (rec.live && rec.in_flight && u32::from(rec.generation) == id >> 16).then_some(slot)
    }

    pub fn again_later(&mut self, slot: u32) {
        self.recs[slot as usize].in_flight = false;
        self.again.push_back(&mut self.recs, slot);
    }
}

impl std::ops::Index<u32> for Jobs {
    type Output = JobRec;
    fn index(&self, i: u32) -> &JobRec {
        &self.recs[i as usize]
    }
}

impl std::ops::IndexMut<u32> for Jobs {
    fn index_mut(&mut self, i: u32) -> &mut JobRec {
        &mut self.recs[i as usize]
    }
}

const _: () = assert!(size_of::<Job>() <= 64);

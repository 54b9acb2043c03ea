//! Jobs in flight of one session.

use crate::api::{Job, NONE};
use crate::counters::Reason;
use crate::lists::{Links, List, linked};
use serde::{Deserialize, Serialize};

/// Kind of a job; the planner's counterpart of [`Job`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Task {
    Install,
    CopyIn,
    CopyOut,
    Copy,
    CopyInAs,
    Drop,
    Evict,
    Cancel,
    Move,
    /// Copy out of an engine's block into a host frame.
    Gather,
    /// Copy from a host frame into an engine's block.
    Scatter,
}

/// State of one job.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct JobRec {
    pub links: Links,
    pub task: Task,
    pub reason: Reason,
    /// Sent and not completed. An entry in use that is not in flight waits in `again`.
    pub in_flight: bool,
    pub live: bool,
    /// Failed attempts.
    pub tries: u8,
    /// High half of the job's id, to detect a stale id.
    pub generation: u16,
    /// Page to make resident, store or evict; `Drop`: the block's first page.
    pub page: u32,
    pub frame: u32,
    /// Page shown in the frame before.
    pub victim: u32,
    /// Lane and position of the victim's use that must end first.
    pub after: Option<(u16, u64)>,
    /// Host frame to read or write.
    pub host: u32,
    /// `Copy`, `Move`: source frame. `CopyInAs`: source page. `Cancel`: job id. `Gather`, `Scatter`: the engine's block.
    pub source: u32,
    /// Request that the job belongs to.
    pub op: u32,
    /// `Gather`, `Scatter`: index of the request's copy.
    pub copy: u32,
    /// A `Cancel` for the job was sent.
    pub canceling: bool,
    /// Time of the last attempt, in microseconds.
    pub sent_us: u64,
    /// The job missed its deadline: see `sessions::late`.
    pub late: bool,
}

impl Default for JobRec {
    fn default() -> Self {
        JobRec {
            links: Links::default(),
            task: Task::Install,
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
    /// Return whether the job may wait for an event that follows the end of a fault of the lane: a use by another lane, which may run on
    /// the same thread, or one of the lane's uses from `held_from` on.
    pub fn too_late(&self, lane: u16, held_from: u64) -> bool {
        self.after.is_some_and(|(user, after)| user != lane || after >= held_from)
    }
}

linked!(JobRec.links);

/// Job entries of a session; their number is the depth of its job ring.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Jobs {
    pub recs: Vec<JobRec>,
    free: List,
    /// Jobs to send again, with another frame or the same.
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

    /// Return whether any job is in flight, or waits to be sent again.
    pub fn any(&self) -> bool {
        (self.free.len as usize) < self.recs.len()
    }

    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Return whether an entry is free in addition to the one reserved for jobs that give no page a frame. Jobs that do give one
    /// may wait for those.
    pub fn has_two_free(&self) -> bool {
        self.free.len > 1
    }

    pub fn free_slots(&self) -> u32 {
        self.free.len
    }

    /// Take an entry. The caller checked that one is free.
    pub fn alloc(&mut self, job: JobRec) -> u32 {
        let slot = self.free.pop_front(&mut self.recs).expect("callers check for a free entry before they plan a job");
        let generation = self.recs[slot as usize].generation;
        self.recs[slot as usize] = JobRec { live: true, generation, ..job };
        slot
    }

    pub fn release(&mut self, slot: u32) {
        let rec = &mut self.recs[slot as usize];
        *rec = JobRec { generation: rec.generation, ..JobRec::default() };
        self.free.push_back(&mut self.recs, slot);
    }

    /// Mark the entry's job as sent and return a new id for it.
    pub fn launch(&mut self, slot: u32, now_us: u64) -> u32 {
        let rec = &mut self.recs[slot as usize];
        rec.generation = rec.generation.wrapping_add(1);
        (rec.in_flight, rec.sent_us) = (true, now_us);
        u32::from(rec.generation) << 16 | slot
    }

    pub fn id(&self, slot: u32) -> u32 {
        u32::from(self.recs[slot as usize].generation) << 16 | slot
    }

    /// Return the entry of a job in flight.
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

//! What a session has done and how long things took: plain counters of its core thread.

use crate::histogram::Histogram;
use kvtide_tiering::api::Job;
use kvtide_wire::entry::Op;
use serde::Serialize;

/// What one session has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SessionTally {
    /// Requests that it made.
    pub requests: u64,
    /// Of those, faults: a lane waited for a page.
    pub faults: u64,
    /// How long its faults took together.
    pub stalled_us: u64,
    /// Jobs that it ended.
    pub jobs: u64,
    /// Bytes that it copied from host memory into its tier 0.
    pub loaded_bytes: u64,
    /// Bytes that it copied from its tier 0 out to host memory.
    pub stored_bytes: u64,
    /// Scores that it wrote faster than they were read, or that were being overwritten when they were.
    pub scores_lost: u64,
    /// Score entries that no correct engine writes.
    pub scores_malformed: u64,
}

/// How long requests of a space took, by what was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RequestTimes {
    /// A lane waited for a page.
    pub fault: Histogram,
    /// A step was announced.
    pub step: Histogram,
    /// Pages were pinned.
    pub acquire: Histogram,
    /// A sequence came back.
    pub resume: Histogram,
    /// Room for new tokens.
    pub reserve: Histogram,
    /// A cached prefix was attached.
    pub map: Histogram,
    /// Blocks were published.
    pub publish: Histogram,
    /// Everything else.
    pub other: Histogram,
}

impl RequestTimes {
    /// Counts a request that ended.
    pub fn add(&mut self, op: u16, us: u64) {
        let histogram = match Op::from_code(op) {
            Some(Op::Fault) => &mut self.fault,
            Some(Op::Step) => &mut self.step,
            Some(Op::Acquire) => &mut self.acquire,
            Some(Op::Resume) => &mut self.resume,
            Some(Op::Reserve) => &mut self.reserve,
            Some(Op::Map) => &mut self.map,
            Some(Op::Publish) => &mut self.publish,
            _ => &mut self.other,
        };
        histogram.add(us);
    }
}

/// Where a job moves bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    /// Nowhere: it changes the page table only.
    #[default]
    Table,
    /// From host memory into tier 0.
    Load,
    /// From tier 0 to host memory.
    Store,
    /// Within tier 0.
    Copy,
}

impl Way {
    /// Of a job.
    pub fn of(job: &Job) -> Way {
        match job {
            Job::Load { .. } | Job::LoadCopy { .. } | Job::Scatter { .. } => Way::Load,
            Job::Store { .. } | Job::Gather { .. } => Way::Store,
            Job::Copy { .. } | Job::Move { .. } => Way::Copy,
            Job::Map { .. } | Job::Drop { .. } | Job::Evict { .. } | Job::Cancel { .. } => Way::Table,
        }
    }
}

/// How long jobs of a space took that succeeded, from their sending to the agent's word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct JobTimes {
    /// Host memory to tier 0.
    pub load: Histogram,
    /// Tier 0 to host memory.
    pub store: Histogram,
    /// Within tier 0.
    pub copy: Histogram,
}

impl JobTimes {
    /// Counts a job that ended well.
    pub fn add(&mut self, way: Way, us: u64) {
        match way {
            Way::Load => self.load.add(us),
            Way::Store => self.store.add(us),
            Way::Copy => self.copy.add(us),
            Way::Table => {}
        }
    }
}

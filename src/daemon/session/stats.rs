//! Stats of a session: counters of its core thread.

use kvtide_rt::histogram::Histogram;
use kvtide_tiering::api::Job;
use kvtide_wire::entry::Op;
use serde::{Deserialize, Serialize};

/// Stats of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionStats {
    /// Requests that it made.
    pub requests: u64,
    /// Faults: requests of a lane that waited for a page.
    pub faults: u64,
    /// Total duration of its faults.
    pub stalled_us: u64,
    /// Jobs completed.
    pub jobs: u64,
    /// Bytes copied from host memory into its tier 0.
    pub loaded_bytes: u64,
    /// Bytes copied from its tier 0 to host memory.
    pub stored_bytes: u64,
    /// Total duration of its loads of blocks.
    pub load_us: u64,
    /// Scores overwritten before or while they were read.
    pub scores_lost: u64,
    /// Invalid score entries.
    pub scores_malformed: u64,
}

/// Durations of a space's requests, by operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestTimes {
    /// Wait of a lane for a page.
    pub fault: Histogram,
    /// Announcement of a step.
    pub step: Histogram,
    /// Pinning of pages.
    pub acquire: Histogram,
    /// Resume of a sequence.
    pub resume: Histogram,
    /// Reservation of room for new tokens.
    pub reserve: Histogram,
    /// Attach of a cached prefix.
    pub map: Histogram,
    /// Publish of blocks.
    pub publish: Histogram,
    /// Lookup of a prefix: one of its requests.
    pub lookup: Histogram,
    /// Lease of a prefix.
    pub lease: Histogram,
    /// Copy of leased blocks into an engine's memory.
    pub load: Histogram,
    /// Copy of an engine's blocks into the cache.
    pub store: Histogram,
    /// All other requests.
    pub other: Histogram,
}

impl RequestTimes {
    /// Count a completed request.
    pub fn add(&mut self, op: u16, us: u64) {
        let histogram = match Op::from_code(op) {
            Some(Op::Fault) => &mut self.fault,
            Some(Op::Step) => &mut self.step,
            Some(Op::Acquire) => &mut self.acquire,
            Some(Op::Resume) => &mut self.resume,
            Some(Op::Reserve) => &mut self.reserve,
            Some(Op::AttachPrefix) => &mut self.map,
            Some(Op::Publish) => &mut self.publish,
            Some(Op::Lookup) => &mut self.lookup,
            Some(Op::Lease) => &mut self.lease,
            Some(Op::LoadBlocks) => &mut self.load,
            Some(Op::StoreBlocks) => &mut self.store,
            _ => &mut self.other,
        };
        histogram.add(us);
    }
}

/// Direction of a job's copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    /// No copy: the job only changes the page table.
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
    /// Return the direction of a job.
    pub fn of(job: &Job) -> Way {
        match job {
            Job::CopyIn { .. } | Job::CopyInAs { .. } | Job::Scatter { .. } => Way::Load,
            Job::CopyOut { .. } | Job::Gather { .. } => Way::Store,
            Job::Copy { .. } | Job::Move { .. } => Way::Copy,
            Job::Install { .. } | Job::Drop { .. } | Job::Evict { .. } | Job::Cancel { .. } => Way::Table,
        }
    }
}

/// Durations of a space's successful jobs, from sending to the agent's report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobTimes {
    /// Host memory to tier 0.
    pub load: Histogram,
    /// Tier 0 to host memory.
    pub store: Histogram,
    /// Within tier 0.
    pub copy: Histogram,
}

impl JobTimes {
    /// Count a successful job.
    pub(crate) fn add(&mut self, way: Way, us: u64) {
        match way {
            Way::Load => self.load.add(us),
            Way::Store => self.store.add(us),
            Way::Copy => self.copy.add(us),
            Way::Table => {}
        }
    }
}

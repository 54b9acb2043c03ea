//! Counters of a session. Relaxed ordering: they are for display, never for decisions.

use super::protocol::{Ended, step::Counts as LaneCounts};
use crate::{client::Stats, memory::Counts};
use kvtide_wire::{
    entry::{JobKind, SAMPLED},
    status::Status,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Total(AtomicU64);

impl Total {
    pub fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one session, named as in [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub steps: Total,
    pub steps_resident: Total,
    pub pages_resident: Total,
    pub pages_missed: Total,
    pub pages_unpicked: Total,
    pages_waived: Total,
    pub omissions: Total,
    pub omitted_ppm: Total,
    pub scores: Total,
    pub sketches_left_out: Total,
    pub messages_before_steps: Total,
    pub faults: Total,
    stalls: Total,
    stall_ns: Total,
    pub requests: Total,
    pub completions_stray: Total,
    jobs: [[Total; 2]; 4],
    jobs_in_place: Total,
    jobs_busy: Total,
    jobs_canceled: Total,
    jobs_invalid: Total,
    jobs_failed: Total,
    sample_checked: Total,
    registered_bytes: Total,
    registered_ns: Total,
    sample_failed: Total,
}

/// Rows of `jobs`: number of jobs and bytes in each direction.
const LOAD: usize = 0;
const STORE: usize = 1;
const COPY: usize = 2;
const TABLE: usize = 3;

impl Counters {
    /// Add what a lane counted.
    pub fn lane(&self, counts: &LaneCounts) {
        self.steps.add(counts.steps);
        self.steps_resident.add(counts.steps_resident);
        self.pages_resident.add(counts.pages_resident);
        self.pages_missed.add(counts.pages_missed);
        self.pages_waived.add(counts.pages_waived);
    }

    /// Count a boundary that has waited for a page since then.
    pub fn stalled(&self, since: std::time::Instant) {
        self.stalls.add(1);
        self.stall_ns.add(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }

    /// Add what tier-0 memory counted.
    pub fn memory(&self, counts: &Counts) {
        if counts.registered_bytes > 0 {
            self.registered_bytes.add(counts.registered_bytes);
            self.registered_ns.add(counts.registered_ns);
        }
    }

    /// Count a finished job.
    pub fn job(&self, ended: &Ended) {
        let (kind, done) = (ended.kind, &ended.done);
        let status = Status::from_code(done.status);
        if done.flags & SAMPLED != 0 && !matches!(kind, Some(JobKind::CopyOut | JobKind::Gather)) {
            self.sample_checked.add(1);
            self.sample_failed.add(u64::from(status == Some(Status::Corrupt)));
        }
        let row = match (status, kind) {
            (Some(Status::Ok), _) if ended.in_place => return self.jobs_in_place.add(1),
            (Some(Status::Ok), Some(JobKind::CopyIn | JobKind::CopyInAs | JobKind::Scatter)) => LOAD,
            (Some(Status::Ok), Some(JobKind::CopyOut | JobKind::Gather)) => STORE,
            (Some(Status::Ok), Some(JobKind::Copy | JobKind::Move)) => COPY,
            (Some(Status::Ok), _) => TABLE,
            // A cancel that came too late is not a refused job.
            (Some(Status::Busy), Some(JobKind::Cancel)) => TABLE,
            (Some(Status::Busy), _) => return self.jobs_busy.add(1),
            (Some(Status::Canceled), _) => return self.jobs_canceled.add(1),
            (Some(Status::Invalid), _) => return self.jobs_invalid.add(1),
            _ => return self.jobs_failed.add(1),
        };
        self.jobs[row][0].add(1);
        self.jobs[row][1].add(done.bytes);
    }

    pub fn snapshot(&self) -> Stats {
        Stats {
            steps: self.steps.get(),
            steps_resident: self.steps_resident.get(),
            messages_before_steps: self.messages_before_steps.get(),
            pages_resident: self.pages_resident.get(),
            pages_missed: self.pages_missed.get(),
            pages_unpicked: self.pages_unpicked.get(),
            pages_waived: self.pages_waived.get(),
            omissions: self.omissions.get(),
            omitted_ppm: self.omitted_ppm.get(),
            scores: self.scores.get(),
            sketches_left_out: self.sketches_left_out.get(),
            faults: self.faults.get(),
            stalls: self.stalls.get(),
            stall_ns: self.stall_ns.get(),
            jobs_host_to_tier0: self.jobs[LOAD][0].get(),
            bytes_host_to_tier0: self.jobs[LOAD][1].get(),
            jobs_in_place: self.jobs_in_place.get(),
            jobs_tier0_to_host: self.jobs[STORE][0].get(),
            bytes_tier0_to_host: self.jobs[STORE][1].get(),
            jobs_within_tier0: self.jobs[COPY][0].get(),
            bytes_within_tier0: self.jobs[COPY][1].get(),
            jobs_table: self.jobs[TABLE][0].get(),
            jobs_busy: self.jobs_busy.get(),
            jobs_canceled: self.jobs_canceled.get(),
            jobs_invalid: self.jobs_invalid.get(),
            jobs_failed: self.jobs_failed.get(),
            requests: self.requests.get(),
            completions_stray: self.completions_stray.get(),
            sample_checked: self.sample_checked.get(),
            sample_failed: self.sample_failed.get(),
            registered_bytes: self.registered_bytes.get(),
            registered_ns: self.registered_ns.get(),
        }
    }
}

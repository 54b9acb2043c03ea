//! Transfers in progress, with the requests that are not started yet and the number at the device. A job carries one transfer, or several of
//! adjacent slots that share requests.

use super::super::plan::{Run, Span};
use super::super::transfer::Transfer;
use super::coding::Coded;
use kvtide_tiering::api::{IoKind, Status};

/// Transfers that have begun together.
#[derive(Debug, Default)]
pub(super) struct Job {
    /// Ordered by slot, adjacent; empty: the job is free.
    #[expect(clippy::vec_box, reason = "boxes travel between threads: what is kept is what is sent")]
    pub transfers: Vec<Box<Transfer>>,
    /// The pages to move, in order; offsets start at the first slot.
    pub spans: Vec<Span>,
    /// All its requests.
    pub runs: Vec<Run>,
    /// Of them, those that were started.
    pub started: usize,
    /// Of them, those that the device has.
    pub at_device: u32,
    /// When it began.
    pub began_us: u64,
    /// What failed first.
    pub failed: Option<(Status, i32)>,
    /// It reads sectors before it writes them, so no other write of its slot may be under way.
    pub fills: bool,
    /// What it holds between pool and device, if its slab is coded or encrypted.
    pub coded: Option<Coded>,
}

impl Job {
    /// Makes it new.
    pub fn clear(&mut self, now_us: u64) {
        let Job { transfers, spans, runs, started, at_device, began_us, failed, fills, coded } = self;
        (*started, *at_device, *began_us, *failed, *fills) = (0, 0, now_us, None, false);
        *coded = None;
        transfers.clear();
        spans.clear();
        runs.clear();
    }

    /// The first of its transfers: the only one of a coded slab.
    ///
    /// # Panics
    /// The job is free.
    pub fn first(&mut self) -> &mut Transfer {
        self.transfers.first_mut().expect("it has begun")
    }

    /// Its bytes in the file: from the begin of its first slot to the end of its last.
    fn extent(&self) -> std::ops::Range<u64> {
        let begin = self.transfers.first().map_or(0, |first| first.offset);
        begin..self.transfers.last().map_or(0, |last| last.offset + last.bytes)
    }

    /// Whether it writes.
    pub fn writes(&self) -> bool {
        self.transfers.first().is_some_and(|first| first.kind == IoKind::Write)
    }

    /// Whether it has nothing more to start.
    pub fn is_started(&self) -> bool {
        self.started == self.runs.len() || self.failed.is_some()
    }

    /// Whether nothing more will happen.
    pub fn is_over(&self) -> bool {
        self.is_started() && self.at_device == 0
    }
}

/// The jobs of a disk, by number.
#[derive(Debug)]
pub(super) struct Jobs {
    jobs: Vec<Job>,
    free: Vec<u32>,
}

impl Jobs {
    pub fn new(count: u32) -> Jobs {
        Jobs { jobs: (0..count).map(|_| Job::default()).collect(), free: (0..count).rev().collect() }
    }

    /// A free job's number.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Whether there is a free job.
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// A job is over.
    pub fn give(&mut self, number: u32) {
        self.free.push(number);
    }

    pub fn at(&mut self, number: u32) -> &mut Job {
        &mut self.jobs[number as usize]
    }

    /// Whether a job must wait for an earlier write of its slot, because one of the two reads sectors before it writes them.
    pub fn must_wait(&self, number: u32) -> bool {
        let job = &self.jobs[number as usize];
        let mine = job.extent();
        let overlaps = |other: &Job| {
            let theirs = other.extent();
            theirs.start < mine.end && mine.start < theirs.end
        };
        let begun = |other: &Job| other.at_device > 0 && (other.fills || job.fills) && other.writes();
        job.writes() && (0..).zip(&self.jobs).any(|(index, other)| index != number && begun(other) && overlaps(other))
    }

    /// Takes all transfers out that the device has nothing of; how many are left.
    #[expect(clippy::vec_box, reason = "boxes travel between threads: what is kept is what is sent")]
    pub fn take_all(&mut self) -> (Vec<Box<Transfer>>, usize) {
        let idle = self.jobs.iter_mut().filter(|job| job.at_device == 0);
        let idle: Vec<Box<Transfer>> = idle.flat_map(|job| job.transfers.drain(..)).collect();
        (idle, self.jobs.iter().map(|job| job.transfers.len()).sum())
    }

    /// Keeps the transfers that the device still has from being freed.
    pub fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.jobs));
    }
}

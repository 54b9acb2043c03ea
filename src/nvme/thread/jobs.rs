//! Transfers in progress, with the requests not started yet and those at the device. A job carries one transfer, or several of
//! adjacent slots that share requests.

use super::super::plan::{Run, Span};
use super::super::transfer::Transfer;
use super::coding::Coded;
use kvtide_types::{IoKind, Status};

/// Transfers that were started together.
#[derive(Debug, Default)]
pub(super) struct Job {
    /// Ordered by slot, adjacent. Empty: the job is free.
    #[expect(clippy::vec_box, reason = "boxes are sent between threads")]
    pub transfers: Vec<Box<Transfer>>,
    /// The pages to transfer, in order; offsets are relative to the first slot.
    pub spans: Vec<Span>,
    /// All its requests.
    pub runs: Vec<Run>,
    /// Number of requests started.
    pub started: usize,
    /// Number of requests at the device.
    pub at_device: u32,
    /// Start time.
    pub began_us: u64,
    /// The first failure.
    pub failed: Option<(Status, i32)>,
    /// It reads sectors before it writes them, so no other write of its slot may be in flight.
    pub fills: bool,
    /// Its coding resources, if its slab is coded or encrypted.
    pub coded: Option<Coded>,
}

impl Job {
    /// Reset the job.
    pub fn clear(&mut self, now_us: u64) {
        let Job { transfers, spans, runs, started, at_device, began_us, failed, fills, coded } = self;
        (*started, *at_device, *began_us, *failed, *fills) = (0, 0, now_us, None, false);
        *coded = None;
        transfers.clear();
        spans.clear();
        runs.clear();
    }

    /// Return the first of its transfers; a coded slab's job has only one.
    ///
    /// # Panics
    /// The job is free.
    pub fn first(&mut self) -> &mut Transfer {
        self.transfers.first_mut().expect("the job has a transfer")
    }

    /// Return its byte range in the file, from the start of its first slot to the end of its last.
    fn extent(&self) -> std::ops::Range<u64> {
        let begin = self.transfers.first().map_or(0, |first| first.offset);
        begin..self.transfers.last().map_or(0, |last| last.offset + last.bytes)
    }

    /// Return true if it writes.
    pub fn writes(&self) -> bool {
        self.transfers.first().is_some_and(|first| first.kind == IoKind::Write)
    }

    /// Return true if it has nothing more to start.
    pub fn is_started(&self) -> bool {
        self.started == self.runs.len() || self.failed.is_some()
    }

    /// Return true if it has ended.
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

    /// Take the number of a free job.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Return true if a job is free.
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Free a job.
    pub fn give(&mut self, number: u32) {
        self.free.push(number);
    }

    pub fn at(&mut self, number: u32) -> &mut Job {
        &mut self.jobs[number as usize]
    }

    /// Return true if a job must wait for an earlier write of its slot, because one of the two reads sectors before it writes them.
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

    /// Take out all transfers with nothing at the device; also return how many are left.
    #[expect(clippy::vec_box, reason = "boxes are sent between threads")]
    pub fn take_all(&mut self) -> (Vec<Box<Transfer>>, usize) {
        let idle = self.jobs.iter_mut().filter(|job| job.at_device == 0);
        let idle: Vec<Box<Transfer>> = idle.flat_map(|job| job.transfers.drain(..)).collect();
        (idle, self.jobs.iter().map(|job| job.transfers.len()).sum())
    }

    /// Leak the transfers that the device still uses.
    pub fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.jobs));
    }
}

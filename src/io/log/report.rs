//! How a disk's log stands: left by its thread where others can read it, since the thread itself may be inside the device.

use kvtide_tiering::log::{Counts, LogStatus};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How a log stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct LogReport {
    /// Bytes of each of its halves.
    pub half_bytes: u64,
    /// Bytes of the half in use that were written.
    pub used_bytes: u64,
    /// Bytes of records that count.
    pub live_bytes: u64,
    /// Blocks recorded.
    pub blocks: u64,
    /// Slabs recorded.
    pub slabs: u32,
    /// Bytes written by appends.
    pub appended_bytes: u64,
    /// Bytes written by compactions.
    pub compacted_bytes: u64,
    /// Compactions that ended.
    pub compactions: u64,
    /// Whether one is under way.
    pub compacting: bool,
    /// Device flushes.
    pub flushes: u64,
    /// Batches found damaged by compactions.
    pub corrupt: u64,
    /// Blocks written down.
    pub puts: u64,
    /// Blocks struck out.
    pub erases: u64,
    /// Notes and grants that the log had no room for.
    pub full: u64,
    /// Notes that were refused for another reason.
    pub refused: u64,
    /// Notes that wait to be written or flushed.
    pub waiting: u64,
    /// For how long the thread has been inside the device, in microseconds; 0: it is not.
    pub inside_us: u64,
    /// Bytes that the device was told that nobody needs.
    pub discarded_bytes: u64,
    /// What the start found.
    pub recovery: RecoveryReport,
}

/// What a start found in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RecoveryReport {
    /// How long it took, in microseconds.
    pub took_us: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Records read.
    pub records: u64,
    /// Slabs with blocks that were found.
    pub slabs: u64,
    /// Blocks found.
    pub blocks: u64,
    /// Of them, those whose records cannot be decrypted here.
    pub sealed: u64,
    /// Batches cut from the end.
    pub torn: u64,
    /// Records that do not count any more.
    pub stale: u64,
    /// Batches and records that are not what was written.
    pub corrupt: u64,
    /// Sectors that could not be read.
    pub unreadable: u64,
    /// Batches that are not what was written and that no flush had covered.
    pub lost_unflushed: u64,
    /// Both halves were damaged: it is not all that was recorded.
    pub partial: bool,
}

impl RecoveryReport {
    /// From what the log counted.
    pub fn new(counts: &Counts, (slabs, sealed): (u64, u64), took_us: u64) -> RecoveryReport {
        let Counts { read_bytes, records, blocks, torn, stale, corrupt, unreadable, lost_unflushed, partial, .. } =
            *counts;
        RecoveryReport {
            took_us,
            read_bytes,
            records,
            slabs,
            blocks,
            sealed,
            torn,
            stale,
            corrupt,
            unreadable,
            lost_unflushed,
            partial,
        }
    }
}

/// Where the thread leaves how the log stands.
#[derive(Debug)]
pub(in crate::io) struct Desk {
    report: Mutex<LogReport>,
    clock: Instant,
    /// Since when the thread is inside the device, in microseconds of the clock, and 1 more; 0: it is not.
    inside: AtomicU64,
    /// Bytes that the log wrote and nobody has counted yet.
    uncounted: AtomicU64,
}

impl Desk {
    /// With what the start found.
    pub fn new(recovery: RecoveryReport) -> Desk {
        Desk {
            report: Mutex::new(LogReport { recovery, ..LogReport::default() }),
            clock: Instant::now(),
            inside: AtomicU64::new(0),
            uncounted: AtomicU64::new(0),
        }
    }

    /// The log as it stands.
    pub fn report(&self) -> LogReport {
        let inside = self.inside.load(Ordering::Relaxed);
        let inside_us = inside.checked_sub(1).map_or(0, |since| self.now_us().saturating_sub(since).max(1));
        LogReport { inside_us, ..*self.lock() }
    }

    /// Bytes that the log wrote since this was last asked.
    pub fn take_written(&self) -> u64 {
        self.uncounted.swap(0, Ordering::Relaxed)
    }

    /// The thread goes into the device, or comes out.
    pub(super) fn inside(&self, inside: bool) {
        self.inside.store(if inside { self.now_us() + 1 } else { 0 }, Ordering::Relaxed);
    }

    /// Changes the thread's own counts.
    pub(super) fn count(&self, change: impl FnOnce(&mut LogReport)) {
        change(&mut self.lock());
    }

    /// Takes over what the log says.
    pub(super) fn take(&self, status: &LogStatus, waiting: usize) {
        let mut report = self.lock();
        let written = (status.appended_bytes + status.compacted_bytes)
            .saturating_sub(report.appended_bytes + report.compacted_bytes);
        self.uncounted.fetch_add(written, Ordering::Relaxed);
        *report = LogReport {
            half_bytes: status.half_bytes,
            used_bytes: status.used_bytes,
            live_bytes: status.live_bytes,
            blocks: status.blocks,
            slabs: status.slabs,
            appended_bytes: status.appended_bytes,
            compacted_bytes: status.compacted_bytes,
            compactions: status.compactions,
            compacting: status.compacting,
            flushes: status.flushes,
            corrupt: status.corrupt,
            waiting: waiting as u64,
            ..*report
        };
    }

    fn now_us(&self) -> u64 {
        self.clock.elapsed().as_micros() as u64
    }

    /// A panic under the lock leaves counts, which is all that it guards.
    fn lock(&self) -> MutexGuard<'_, LogReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Status of a disk's log. Its thread publishes it here, since the thread itself may be blocked in the device.

use kvtide_format::log::{Counts, LogStatus};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Status of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogReport {
    /// Bytes of each half.
    pub half_bytes: u64,
    /// Bytes written in the current half.
    pub used_bytes: u64,
    /// Bytes of live records.
    pub live_bytes: u64,
    /// Blocks recorded.
    pub blocks: u64,
    /// Slabs recorded.
    pub slabs: u32,
    /// Bytes written by appends.
    pub appended_bytes: u64,
    /// Bytes written by compactions.
    pub compacted_bytes: u64,
    /// Completed compactions.
    pub compactions: u64,
    /// A compaction is running.
    pub compacting: bool,
    /// Device flushes.
    pub flushes: u64,
    /// Batches found damaged by compactions.
    pub corrupt: u64,
    /// Put records written.
    pub puts: u64,
    /// Erase records written.
    pub erases: u64,
    /// Requests and grants refused because the log was full.
    pub full: u64,
    /// Requests refused for another reason.
    pub refused: u64,
    /// The file system has no room for a region that was asked for.
    pub no_room: bool,
    /// Requests waiting to be written or flushed.
    pub waiting: u64,
    /// How long the thread has been in a device call, in microseconds; 0: it is in none.
    pub inside_us: u64,
    /// Bytes discarded on the device.
    pub discarded_bytes: u64,
    /// Result of the recovery at start.
    pub recovery: RecoveryReport,
}

/// Result of the recovery of a log at start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecoveryReport {
    /// Duration in microseconds.
    pub took_us: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Records read.
    pub records: u64,
    /// Slabs with blocks found.
    pub slabs: u64,
    /// Blocks found.
    pub blocks: u64,
    /// Blocks with records that cannot be decrypted here.
    pub sealed: u64,
    /// Incomplete batches cut from the end.
    pub torn: u64,
    /// Records that are no longer valid.
    pub stale: u64,
    /// Damaged batches and records.
    pub corrupt: u64,
    /// Sectors that could not be read.
    pub unreadable: u64,
    /// Damaged batches that were never flushed.
    pub lost_unflushed: u64,
    /// Both halves were damaged: some records are missing.
    pub partial: bool,
}

impl RecoveryReport {
    /// Create the report from the log's counters.
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

/// Published status of the log.
#[derive(Debug)]
pub(crate) struct SharedLogStatus {
    report: Mutex<LogReport>,
    clock: Instant,
    /// Start of the current device call, in microseconds of the clock, plus 1; 0: in no call.
    inside: AtomicU64,
    /// Bytes written by the log and not yet added to the disk's counters.
    uncounted: AtomicU64,
}

impl SharedLogStatus {
    /// Create the status with the result of the recovery.
    pub fn new(recovery: RecoveryReport) -> SharedLogStatus {
        SharedLogStatus {
            report: Mutex::new(LogReport { recovery, ..LogReport::default() }),
            clock: Instant::now(),
            inside: AtomicU64::new(0),
            uncounted: AtomicU64::new(0),
        }
    }

    /// Return the current status.
    pub fn report(&self) -> LogReport {
        let inside = self.inside.load(Ordering::Relaxed);
        let inside_us = inside.checked_sub(1).map_or(0, |since| self.now_us().saturating_sub(since).max(1));
        LogReport { inside_us, ..*self.lock() }
    }

    /// Return the bytes that the log wrote since the last call.
    pub fn take_written(&self) -> u64 {
        self.uncounted.swap(0, Ordering::Relaxed)
    }

    /// Mark the start or the end of a device call.
    pub(super) fn inside(&self, inside: bool) {
        self.inside.store(if inside { self.now_us() + 1 } else { 0 }, Ordering::Relaxed);
    }

    /// Change the thread's own counters.
    pub(super) fn count(&self, change: impl FnOnce(&mut LogReport)) {
        change(&mut self.lock());
    }

    /// Update the status from the log.
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

    /// A poisoned lock is safe to use: it guards only counters.
    fn lock(&self) -> MutexGuard<'_, LogReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

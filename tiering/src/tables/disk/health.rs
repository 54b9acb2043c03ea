//! Failures of reads and writes, and the pauses that follow them.

use super::Disk;
use crate::api::Status;
use serde::{Deserialize, Serialize};

/// Attempts of a failed transfer before the waiting requests fail.
pub(crate) const IO_TRIES: u8 = 3;
/// Consecutive failed writes, over all slots, after which the disk counts as failing; about 0.1 s.
const FAILING: u8 = 8;
/// Maximum slots given up without a successful write in between.
const SUSPECTS_MAX: u8 = 2;
/// Delay before the next transfer of a kind after a failure, in microseconds; doubled with each consecutive failure.
const RETRY_US: u64 = 500;
/// Maximum of that delay, so that a recovered disk is detected within a second.
const RETRY_MAX_US: u64 = 1_000_000;

/// Failures of reads and writes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Health {
    /// Consecutive failed writes, over all slots.
    write_fails: u8,
    /// Time of the last failed write that was counted, in microseconds. Writes sent before it that fail too count as the same
    /// failure.
    write_failed_us: u64,
    /// Status of the last failed write.
    pub(super) failed_with: Status,
    /// Slots given up since the last successful write.
    suspects: u8,
    /// No write starts before this time, in microseconds.
    write_at: u64,
    /// Consecutive failed reads, over all slots.
    read_fails: u8,
    /// No read starts before this time, in microseconds.
    read_at: u64,
}

impl Default for Health {
    fn default() -> Self {
        let (write_fails, write_failed_us, failed_with) = (0, 0, Status::Ok);
        Health { write_fails, write_failed_us, failed_with, suspects: 0, write_at: 0, read_fails: 0, read_at: 0 }
    }
}

impl Health {
    /// Forget failures: the disk that went out of service may have caused them.
    pub fn forgive(&mut self) {
        (self.write_fails, self.read_fails, self.suspects) = (0, 0, 0);
        (self.write_at, self.read_at) = (0, 0);
    }
}

/// Return when transfers or log requests may start again after `fails` consecutive failures, in microseconds.
pub(super) fn retry_at(now_us: u64, fails: u8) -> u64 {
    now_us.saturating_add((RETRY_US << fails.min(16)).min(RETRY_MAX_US))
}

impl Disk {
    /// Return the failure status if no write, or no erasure of slots to be reused, has succeeded for long. No slot is committed to
    /// new requests then.
    pub fn failing(&self) -> Option<Status> {
        (self.health.write_fails >= FAILING || self.is_log_stuck()).then_some(self.health.failed_with)
    }

    /// Return whether writes in flight are expected to succeed.
    pub fn accepts_writes(&self) -> bool {
        self.health.write_fails < IO_TRIES
    }

    /// Return until when no write starts, if that is later than now.
    pub fn writes_paused_until(&self, now_us: u64) -> Option<u64> {
        Some(self.health.write_at).filter(|&at| now_us < at)
    }

    /// Return until when no read starts, if that is later than now.
    pub fn reads_paused_until(&self, now_us: u64) -> Option<u64> {
        Some(self.health.read_at).filter(|&at| now_us < at)
    }

    pub fn write_succeeded(&mut self) {
        (self.health.write_fails, self.health.suspects) = (0, 0);
    }

    /// Count a write that failed. Return when writes may start again.
    pub fn write_failed(&mut self, sent_us: u64, status: Status, now_us: u64) -> u64 {
        let h = &mut self.health;
        if sent_us >= h.write_failed_us {
            h.write_fails = h.write_fails.saturating_add(1);
            h.write_failed_us = now_us.max(1);
        }
        h.failed_with = if status == Status::NoSpace { status } else { Status::Io };
        h.write_at = retry_at(now_us, h.write_fails);
        h.write_at
    }

    /// Return whether a slot may be retired whose last `fails` writes failed. If all slots fail, the disk is at fault: then only a
    /// few may.
    pub fn may_suspect(&self, fails: u8) -> bool {
        self.health.write_fails < fails || self.health.suspects < SUSPECTS_MAX
    }

    /// Count a retired slot whose last `fails` writes failed.
    pub fn count_suspect(&mut self, fails: u8) {
        self.health.suspects += u8::from(self.health.write_fails >= fails);
    }

    pub fn read_succeeded(&mut self) {
        self.health.read_fails = 0;
    }

    /// Count a read that failed. Return when reads may start again.
    pub fn read_failed(&mut self, now_us: u64) -> u64 {
        self.health.read_fails = self.health.read_fails.saturating_add(1);
        self.health.read_at = retry_at(now_us, self.health.read_fails);
        self.health.read_at
    }

    /// End the pauses that are over. Return whether reads may start again, and when the next pause ends.
    pub fn end_pauses(&mut self, now_us: u64) -> (bool, Option<u64>) {
        let log = [self.log.record_at, self.log.erase_at];
        if log.iter().any(|&at| at <= now_us) {
            self.wake_again();
        }
        let ended = |at: &mut u64| *at <= now_us && std::mem::take(at) > 0;
        let reads = ended(&mut self.health.read_at);
        if ended(&mut self.health.write_at) {
            self.wake();
        }
        let all = log.into_iter().chain([self.health.read_at, self.health.write_at]);
        (reads, all.filter(|&at| at > now_us).min())
    }
}

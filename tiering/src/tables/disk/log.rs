//! The order in which log requests are sent, and the pauses after those that fail.

use super::health::retry_at;
use super::{Disk, LogRequest, LogRequestKind, Logged, Place};
use crate::api::{NONE, Status};
use crate::error::Error;
use serde::{Deserialize, Serialize};

/// Consecutive failed erasures after which slots awaiting erasure do not count as free soon.
const FAILING: u8 = 8;

/// State of the log requests.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Log {
    /// Flushes started.
    flushes: u64,
    /// A flush is in flight.
    pub(super) flushing: bool,
    /// Another flush is wanted.
    flush_wanted: bool,
    /// Send a record next if both a record and an erasure could be sent.
    record_next: bool,
    /// Consecutive failed records. No record starts before `record_at`, in microseconds.
    record_fails: u8,
    pub(super) record_at: u64,
    /// Consecutive failed erasures. No erasure starts before `erase_at`, in microseconds.
    erase_fails: u8,
    pub(super) erase_at: u64,
}

impl Disk {
    /// Return whether erasures fail, so that slots awaiting erasure do not become free.
    pub fn is_log_stuck(&self) -> bool {
        self.log.erase_fails >= FAILING
    }

    pub fn log_requests_in_flight(&self) -> u32 {
        self.log_requests.in_flight()
    }

    /// Want a flush that starts from now on: one in progress may have started too early. Return its number.
    pub fn want_flush(&mut self) -> u64 {
        self.log.flush_wanted = true;
        self.wake();
        self.log.flushes + 1
    }

    /// Return whether a flush is wanted or in flight.
    pub fn has_flush(&self) -> bool {
        self.log.flush_wanted || self.log.flushing
    }

    /// Return the kind of log request to send next, and when one that pauses is due. `block_erase` and `record`: a block has a
    /// record to erase or to send.
    pub fn next_log_request(
        &self,
        now_us: u64,
        block_erase: bool,
        record: bool,
    ) -> (Option<LogRequestKind>, Option<u64>) {
        if self.log_requests.free() == 0 {
            return (None, None);
        }
        let erase = block_erase || self.has_to_erase();
        let wanted = [(erase, self.log.erase_at), (record, self.log.record_at)];
        let paused = wanted.into_iter().filter(|&(wanted, at)| wanted && now_us < at).map(|w| w.1).min();
        let [erase, record] = wanted.map(|(wanted, at)| wanted && now_us >= at);
        let kind = if self.log.flush_wanted && !self.log.flushing {
            Some(LogRequestKind::Flush)
        } else if erase && !(record && self.log.record_next) {
            Some(LogRequestKind::Erase)
        } else {
            record.then_some(LogRequestKind::Record)
        };
        (kind, paused)
    }

    /// Let records and erasures take turns: `kind` is sent now.
    pub fn take_turn(&mut self, kind: LogRequestKind) {
        if kind != LogRequestKind::Flush {
            self.log.record_next = kind == LogRequestKind::Erase;
        }
    }

    /// Start a flush. Return the request's id, or `None` if all requests are in flight.
    pub fn start_flush(&mut self) -> Option<u32> {
        self.log.flush_wanted = false;
        let id = self.log_requests.launch(LogRequest::new(LogRequestKind::Flush, NONE, false))?;
        self.log.flushing = true;
        self.log.flushes += 1;
        Some(id)
    }

    /// Start the erasure of a slot's record. Return the request's id, or `None` if there is nothing to erase.
    pub fn start_erase(&mut self, at: u32) -> Option<u32> {
        if at == NONE || self.logged(at) != Logged::Stale || self.place(at) == Place::Gone {
            return None;
        }
        let id = self.log_requests.launch(LogRequest::new(LogRequestKind::Erase, at, false))?;
        self.set_logged(at, Logged::Erasing);
        Some(id)
    }

    /// Start a record of a slot. Return the request's id, or `None` if all requests are in flight.
    pub fn start_record(&mut self, at: u32) -> Option<u32> {
        let fresh = self.logged(at) == Logged::No;
        let id = self.log_requests.launch(LogRequest::new(LogRequestKind::Record, at, fresh))?;
        self.set_logged(at, Logged::Recording);
        Some(id)
    }

    /// Free the record of a request that ended, and return it.
    ///
    /// # Errors
    /// [`Error::LogRequest`] if no request with that id is in flight.
    pub fn end_log_request(&mut self, id: u32) -> Result<LogRequest, Error> {
        let request = self.log_requests.release(id).ok_or(Error::LogRequest { id })?;
        self.wake();
        Ok(request)
    }

    /// End the flush in flight. Return its number.
    pub fn end_flush(&mut self) -> u64 {
        self.log.flushing = false;
        self.log.flushes
    }

    /// End the record in flight of a slot: `nothing` was written, or it is stale until [`Disk::validate_record`]. Return whether it
    /// was not stale before.
    pub fn end_record(&mut self, at: u32, nothing: bool) -> bool {
        let counts = self.logged(at) == Logged::Recording;
        self.set_logged(at, if nothing { Logged::No } else { Logged::Stale });
        counts
    }

    /// The erasure of a block's stale record failed: it may still exist.
    pub fn keep_record(&mut self, at: u32) {
        self.set_logged(at, Logged::Stale);
    }

    /// Count a record that ended. If it failed, return when records may start again.
    pub fn record_ended(&mut self, ok: bool, now_us: u64) -> Option<u64> {
        ended(ok, now_us, &mut self.log.record_fails, &mut self.log.record_at)
    }

    /// Count an erasure that ended. If it failed, return when erasures may start again.
    pub fn erase_ended(&mut self, ok: bool, now_us: u64) -> Option<u64> {
        let retry_at = ended(ok, now_us, &mut self.log.erase_fails, &mut self.log.erase_at);
        if !ok && self.is_log_stuck() {
            self.health.failed_with = Status::Io;
        }
        retry_at
    }
}

fn ended(ok: bool, now_us: u64, fails: &mut u8, at: &mut u64) -> Option<u64> {
    (*fails, *at) = match ok {
        true => (0, 0),
        false => (fails.saturating_add(1), retry_at(now_us, fails.saturating_add(1))),
    };
    (!ok).then_some(*at)
}

//! Log requests: the order in which they are sent, and the handling of their completions.

use super::Core;
use crate::actions::ActionBuf;
use crate::api::{Action, NONE, Status};
use crate::error::Error;
use crate::pages::{LogRequest, LogRequestKind, Logged, PersistState, Place};
use crate::plan::IO_TRIES;
use serde::{Deserialize, Serialize};

/// Consecutive failed erasures after which slots awaiting erasure do not count as free soon.
const FAILING: u8 = 8;

/// State of the log requests.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Log {
    /// Flushes started.
    pub flushes: u64,
    /// A flush is in flight.
    pub flushing: bool,
    /// Another flush is wanted.
    pub flush_wanted: bool,
    /// Send a record next if both a record and an erasure could be sent.
    record_next: bool,
    /// Consecutive failed records. No record starts before `record_at`, in microseconds.
    record_fails: u8,
    pub record_at: u64,
    /// Consecutive failed erasures. No erasure starts before `erase_at`, in microseconds.
    erase_fails: u8,
    pub erase_at: u64,
}

impl Log {
    /// Return whether erasures fail, so that slots awaiting erasure do not become free.
    pub fn is_stuck(&self) -> bool {
        self.erase_fails >= FAILING
    }
}

impl Core {
    /// Send the log requests that are due. Return false if the buffer had no room for all.
    pub(crate) fn send_log_requests(&mut self, buf: &mut ActionBuf) -> bool {
        if !self.has_nvme() {
            return true;
        }
        while self.log_requests.free() > 0 {
            let flush = self.log.flush_wanted && !self.log.flushing;
            let erase = self.may_start(self.log.erase_at, self.disk.has_to_erase() || !self.blocks.to_erase.is_empty());
            let record = self.may_start(self.log.record_at, !self.blocks.to_record.is_empty());
            if !flush && !erase && !record {
                return true;
            }
            if buf.room() == 0 || buf.words_room() < self.words_of_record() {
                return false;
            }
            if flush {
                self.send_flush(buf);
            } else if erase && !(record && self.log.record_next) {
                self.send_erase(buf);
                self.log.record_next = true;
            } else {
                self.send_record(buf);
                self.log.record_next = false;
            }
        }
        true
    }

    fn may_start(&mut self, at: u64, wanted: bool) -> bool {
        if wanted && self.now < at {
            self.set_timer(at);
        }
        wanted && self.now >= at
    }

    fn words_of_record(&self) -> usize {
        8 + self.geo.planes.len().div_ceil(32)
    }

    fn send_flush(&mut self, buf: &mut ActionBuf) {
        self.log.flush_wanted = false;
        let Some(id) = self.log_requests.launch(LogRequest::new(LogRequestKind::Flush, NONE, false)) else { return };
        self.log.flushing = true;
        self.log.flushes += 1;
        self.emit(Action::Flush { id }, &[], buf);
    }

    fn send_erase(&mut self, buf: &mut ActionBuf) {
        let at = match self.disk.next_to_erase() {
            Some(at) => at,
            None => {
                let b = self.blocks.to_erase.head;
                if b == NONE {
                    return;
                }
                self.blocks.set_persist(b, PersistState::No);
                self.blocks[b].slot
            }
        };
        if at == NONE || self.disk.logged(at) != Logged::Stale || self.disk.place(at) == Place::Gone {
            return;
        }
        let Some(id) = self.log_requests.launch(LogRequest::new(LogRequestKind::Erase, at, false)) else { return };
        self.disk.set_logged(at, Logged::Erasing);
        let urgent = self.disk.free_slots() == 0;
        self.emit(Action::Erase { id, at: self.disk.location(at), urgent }, &[], buf);
    }

    fn send_record(&mut self, buf: &mut ActionBuf) {
        let b = self.blocks.to_record.head;
        if self.stage_of(b) != PersistState::Record {
            return self.update_persist(b);
        }
        let block = self.blocks[b];
        let at = block.slot;
        let fresh = self.disk.logged(at) == Logged::No;
        let Some(id) = self.log_requests.launch(LogRequest::new(LogRequestKind::Record, at, fresh)) else { return };
        let start = buf.list_start();
        self.index.record_words(block.entry).for_each(|word| buf.push_word(word));
        let pages = self.pages_of(b);
        for first in pages.clone().step_by(32) {
            let word = (first..pages.end.min(first + 32))
                .fold(0, |word, page| word | u32::from(!self.pages[page as usize].out_of_window()) << (page - first));
            buf.push_word(word);
        }
        let list = (start, buf.list_start() - start);
        let urgent = self.blocks[b].waited;
        let action = Action::Record { id, at: self.disk.location(at), shard: block.shard, urgent, list };
        self.trace.fold(&action, buf.list(list));
        buf.push(action);
        self.disk.set_logged(at, Logged::Recording);
        self.update_persist(b);
        self.step_children(b);
    }

    /// Process the completion of a log request.
    pub(crate) fn log_done(&mut self, id: u32, status: Status) -> Result<(), Error> {
        let Some(request) = self.log_requests.release(id) else { return Err(Error::LogRequest { id }) };
        self.wake_disk();
        match request.kind {
            LogRequestKind::Flush => self.flushed(status),
            LogRequestKind::Record => self.record_done(request, status),
            LogRequestKind::Erase => self.erase_done(request.slot, status),
        }
        self.ids_may_be_free();
        Ok(())
    }

    fn flushed(&mut self, status: Status) {
        self.log.flushing = false;
        self.counters.flushes += 1;
        self.counters.flushes_failed += u64::from(status != Status::Ok);
        self.publishes_flushed(status);
    }

    fn record_done(&mut self, request: LogRequest, status: Status) {
        let at = request.slot;
        if status == Status::Ok {
            (self.log.record_fails, self.log.record_at) = (0, 0);
            self.counters.records += 1;
        } else {
            self.counters.records_failed += 1;
            self.log.record_fails = self.log.record_fails.saturating_add(1);
            self.log.record_at = self.after_failures(self.log.record_fails);
        }
        if self.disk.place(at) == Place::Gone {
            return;
        }
        // A full log stored nothing. After any other failure the record may exist.
        let nothing = status == Status::NoSpace && request.fresh;
        let counts = self.disk.logged(at) == Logged::Recording;
        self.disk.set_logged(at, if nothing { Logged::No } else { Logged::Stale });
        if self.disk.place(at) != Place::Block {
            return match nothing {
                true => self.slot_unlogged(at),
                false => self.disk.ask_erase(at),
            };
        }
        let b = self.disk.owner(at);
        if self.blocks[b].entry == NONE {
            if !nothing {
                self.blocks.set_persist(b, PersistState::Erase);
            }
        } else if !counts {
            self.update_persist(b);
        } else if status == Status::Ok && self.parent_is_recorded(b) {
            self.disk.set_logged(at, Logged::Recorded);
            self.is_stored(b);
        } else if status == Status::Ok {
            // The parent's record failed meanwhile or comes later. Record this block again after it.
            self.update_persist(b);
        } else {
            self.blocks[b].record_fails = self.blocks[b].record_fails.saturating_add(1);
            match self.blocks[b].record_fails < IO_TRIES {
                true => self.update_persist(b),
                false => self.stop_persisting(b, if status == Status::NoSpace { status } else { Status::Io }),
            }
        }
    }

    fn erase_done(&mut self, at: u32, status: Status) {
        if status == Status::Ok {
            (self.log.erase_fails, self.log.erase_at) = (0, 0);
            self.counters.erases += 1;
        } else {
            self.counters.erases_failed += 1;
            self.log.erase_fails = self.log.erase_fails.saturating_add(1);
            self.log.erase_at = self.after_failures(self.log.erase_fails);
            if self.log.is_stuck() {
                self.disk.failed_with = Status::Io;
                self.wake_all();
            }
        }
        match self.disk.place(at) {
            Place::Gone => {}
            _ if status == Status::Ok => self.slot_unlogged(at),
            Place::Block => {
                self.disk.set_logged(at, Logged::Stale);
                let b = self.disk.owner(at);
                match self.blocks[b].entry == NONE {
                    true => self.blocks.set_persist(b, PersistState::Erase),
                    false => self.update_persist(b),
                }
            }
            _ => self.disk.ask_erase(at),
        }
    }

    /// Mark the slot's record as absent. A slot without an owner becomes free; otherwise its block continues to be persisted.
    fn slot_unlogged(&mut self, at: u32) {
        self.disk.unlog(at);
        if self.disk.place(at) == Place::Block {
            self.update_persist(self.disk.owner(at));
        } else {
            self.host_freed();
            self.wake_admission();
        }
    }
}

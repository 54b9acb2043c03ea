//! Log requests: the order in which they are sent, and the handling of their completions.

use crate::actions::ActionBuf;
use crate::api::{Action, NONE, Status};
use crate::blocks::PersistState;
use crate::disk::DiskTier;
use crate::error::Error;
use crate::tables::disk::{IO_TRIES, LogRequest, LogRequestKind, Place};

impl DiskTier {
    /// Send the log requests that are due. Return false if the buffer had no room for all.
    pub(crate) fn send_log_requests(&mut self, buf: &mut ActionBuf) -> bool {
        if !self.disk.exists() {
            return true;
        }
        loop {
            let (erase, record) = (!self.blocks().to_erase.is_empty(), !self.blocks().to_record.is_empty());
            let (next, paused_until) = self.disk.next_log_request(self.now(), erase, record);
            if let Some(at) = paused_until {
                self.set_timer(at);
            }
            let Some(kind) = next else { return true };
            if buf.room() == 0 || buf.words_room() < self.words_of_record() {
                return false;
            }
            self.disk.take_turn(kind);
            match kind {
                LogRequestKind::Flush => self.send_flush(buf),
                LogRequestKind::Erase => self.send_erase(buf),
                LogRequestKind::Record => self.send_record(buf),
            }
        }
    }

    fn words_of_record(&self) -> usize {
        8 + self.geo().planes.len().div_ceil(32)
    }

    fn send_flush(&mut self, buf: &mut ActionBuf) {
        if let Some(id) = self.disk.start_flush() {
            self.emit(Action::Flush { id }, &[], buf);
        }
    }

    fn send_erase(&mut self, buf: &mut ActionBuf) {
        let at = match self.disk.next_to_erase() {
            Some(at) => at,
            None => {
                let b = self.blocks().to_erase.head;
                if b == NONE {
                    return;
                }
                self.set_persist(b, PersistState::No);
                self.block(b).slot
            }
        };
        let Some(id) = self.disk.start_erase(at) else { return };
        let urgent = self.disk.free_slots() == 0;
        let place = self.disk.location(at);
        self.emit(Action::Erase { id, at: place, urgent }, &[], buf);
    }

    fn send_record(&mut self, buf: &mut ActionBuf) {
        let b = self.blocks().to_record.head;
        if self.stage_of(b) != PersistState::Record {
            return self.update_persist(b);
        }
        let block = *self.block(b);
        let at = block.slot;
        let Some(id) = self.disk.start_record(at) else { return };
        let start = buf.list_start();
        self.index.record_words(block.entry).for_each(|word| buf.push_word(word));
        let pages = self.pages_of(b);
        for first in pages.clone().step_by(32) {
            let word = (first..pages.end.min(first + 32))
                .fold(0, |word, page| word | u32::from(!self.page(page).out_of_window()) << (page - first));
            buf.push_word(word);
        }
        let list = (start, buf.list_start() - start);
        let urgent = self.block(b).waited;
        let action = Action::Record { id, at: self.disk.location(at), shard: block.shard, urgent, list };
        self.emit_listed(action, list, buf);
        self.update_persist(b);
        self.step_children(b);
    }

    /// Process the completion of a log request.
    pub(crate) fn log_done(&mut self, id: u32, status: Status) -> Result<(), Error> {
        let request = self.disk.end_log_request(id)?;
        match request.kind {
            LogRequestKind::Flush => self.flushed(status),
            LogRequestKind::Record => self.record_done(request, status),
            LogRequestKind::Erase => self.erase_done(request.slot, status),
        }
        self.ids_may_be_free();
        Ok(())
    }

    fn flushed(&mut self, status: Status) {
        let done = self.disk.end_flush();
        self.counters.flushes += 1;
        self.counters.flushes_failed += u64::from(status != Status::Ok);
        self.publishes_flushed(done, status);
    }

    fn record_done(&mut self, request: LogRequest, status: Status) {
        let at = request.slot;
        let now = self.now();
        match self.disk.record_ended(status == Status::Ok, now) {
            None => self.counters.records += 1,
            Some(retry_at) => {
                self.counters.records_failed += 1;
                self.set_timer(retry_at);
            }
        }
        if self.disk.place(at) == Place::Gone {
            return;
        }
        // A full log stored nothing. After any other failure the record may exist.
        let nothing = status == Status::NoSpace && request.fresh;
        let counts = self.disk.end_record(at, nothing);
        if self.disk.place(at) != Place::Block {
            return match nothing {
                true => self.slot_unlogged(at),
                false => self.disk.ask_erase(at),
            };
        }
        let b = self.disk.owner(at);
        if self.block(b).entry == NONE {
            if !nothing {
                self.set_persist(b, PersistState::Erase);
            }
        } else if !counts {
            self.update_persist(b);
        } else if status == Status::Ok && self.parent_is_recorded(b) {
            self.disk.validate_record(at);
            self.is_stored(b);
        } else if status == Status::Ok {
            // The parent's record failed meanwhile or comes later. Record this block again after it.
            self.update_persist(b);
        } else {
            let fails = self.block(b).record_fails.saturating_add(1);
            self.set_record_fails(b, fails);
            match self.block(b).record_fails < IO_TRIES {
                true => self.update_persist(b),
                false => self.stop_persisting(b, if status == Status::NoSpace { status } else { Status::Io }),
            }
        }
    }

    fn erase_done(&mut self, at: u32, status: Status) {
        let now = self.now();
        match self.disk.erase_ended(status == Status::Ok, now) {
            None => self.counters.erases += 1,
            Some(retry_at) => {
                self.counters.erases_failed += 1;
                self.set_timer(retry_at);
                if self.disk.is_log_stuck() {
                    self.wake_all();
                }
            }
        }
        match self.disk.place(at) {
            Place::Gone => {}
            _ if status == Status::Ok => self.slot_unlogged(at),
            Place::Block => {
                self.disk.keep_record(at);
                let b = self.disk.owner(at);
                match self.block(b).entry == NONE {
                    true => self.set_persist(b, PersistState::Erase),
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

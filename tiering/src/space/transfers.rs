//! Start and end of transfers between host and NVMe.
//!
//! A transfer counts as in flight on its block, so the block's id and slot stay until its `IoDone`. Its host frames are in its
//! own list, so they are not evicted. While a page is written or read, no other operation starts between its host frame and its
//! slot.

use super::Core;
use crate::actions::{ActionBuf, LIST_MAX};
use crate::api::{Action, BlockId, Cause, IoClass, IoKind, NONE, Status};
use crate::counters::Reason;
use crate::error::Error;
use crate::lists::List;
use crate::mutants::{self, Mutant};
use crate::pages::Transfer;
use crate::plan::IO_TRIES;

/// Words per page in a transfer's list.
const WORDS: usize = 3;
/// Maximum pages of one transfer, limited by the list.
pub(crate) const IO_PAGES_MAX: usize = LIST_MAX / WORDS;
/// Delay before the next transfer of a kind after a failure, in microseconds; doubled with each consecutive failure.
const RETRY_US: u64 = 500;
/// Maximum of that delay, so that a recovered disk is detected within a second.
const RETRY_MAX_US: u64 = 1_000_000;
/// Maximum slots given up without a successful write in between.
const SUSPECTS_MAX: u8 = 2;

impl Core {
    /// Return whether a transfer of that class can start now. A quarter of the transfers is reserved for demand reads.
    pub(crate) fn can_move(&mut self, class: IoClass, buf: &ActionBuf) -> bool {
        let max = self.cfg.limits.ios_max;
        let spared = if class == IoClass::Demand { 0 } else { max / 4 };
        if self.transfers.free() <= spared {
            self.io_wanted = true;
            return false;
        }
        buf.room() > 0 && buf.words_room() >= self.words_of_block()
    }

    /// Return the words of a transfer of a whole block.
    pub(crate) fn words_of_block(&self) -> usize {
        WORDS * self.geo.planes.len().min(IO_PAGES_MAX)
    }

    /// Start a transfer of the pages with their host frames in `frames`. The caller checked [`Core::can_move`].
    pub(crate) fn move_pages(
        &mut self,
        (kind, class, reason): (IoKind, IoClass, Reason),
        b: BlockId,
        frames: List,
        buf: &mut ActionBuf,
    ) {
        let start = buf.list_start();
        for (at, page) in self.host.in_transfer(&frames) {
            let place = self.host.location(at);
            buf.push_word(u32::from(self.geo.plane_of(page)));
            buf.push_word(place.slab);
            buf.push_word(place.slot);
        }
        self.add_in_flight(b);
        if kind == IoKind::Read {
            self.disk_link.begin(self.now, self.bytes_of(&frames));
        }
        let transfer = Transfer { kind, class, reason, block: b, frames, sent_us: self.now, ..Transfer::default() };
        let id = self.transfers.launch(transfer);
        let list = (start, buf.list_start() - start);
        let action = Action::Io { id, kind, class, at: self.disk.location(self.blocks[b].slot), list };
        self.trace.fold(&action, buf.list(list));
        buf.push(action);
    }

    /// Return the bytes of the pages in a transfer's host frames.
    fn bytes_of(&self, frames: &List) -> u32 {
        let class = |at| usize::from(self.host.class_of(at));
        let bytes = self.host.in_transfer(frames).map(|(at, _)| self.geo.classes[class(at)].page_bytes);
        bytes.fold(0, u32::saturating_add)
    }

    /// Raise the urgency of the read of a page that a caller waits for.
    pub(crate) fn urge(&mut self, page: u32, class: IoClass, buf: &mut ActionBuf) {
        // Callers poll; usually all reads in flight are urgent already.
        if !self.transfers.any_lazy() {
            return;
        }
        let b = self.geo.block_of(page);
        let reads = |t: &Transfer, core: &Core| {
            let mut moves = core.host.in_transfer(&t.frames);
            t.live && t.kind == IoKind::Read && t.block == b && moves.any(|(_, p)| p == page)
        };
        let Some(at) = self.transfers.recs.iter().position(|t| reads(t, self)) else { return };
        if buf.room() > 0 && self.transfers.urge(at as u32, class) {
            self.counters.prefetch_late += 1;
            let id = self.transfers.id(at as u32);
            self.emit(Action::Urge { id, class }, &[], buf);
        }
    }

    /// Process the end of a transfer.
    pub(crate) fn io_done(&mut self, id: u32, status: Status, bad: &[u32]) -> Result<(), Error> {
        let Some(at) = self.transfers.slot_of(id) else { return Err(Error::Transfer { id }) };
        let transfer = self.transfers.release(at);
        if std::mem::take(&mut self.io_wanted) {
            self.wake_all();
        }
        self.wake_disk();
        let failed = matches!(status, Status::Io | Status::NoSpace);
        self.counters.io_failed += u64::from(failed);
        match transfer.kind {
            IoKind::Read => self.pages_read(transfer, status, bad),
            IoKind::Write => self.pages_written(transfer, status, bad),
        }
        if self.is_slot_gone(transfer.block) {
            self.slot_gone(transfer.block);
        }
        self.update_persist(transfer.block);
        self.remove_in_flight(transfer.block);
        if status != Status::Ok {
            self.ids_may_be_free();
        }
        Ok(())
    }

    /// Continue after the delays that follow failures, where they have ended.
    pub(crate) fn transfers_due(&mut self) {
        for at in [self.log.record_at, self.log.erase_at] {
            match at <= self.now {
                true => self.disk_woken |= self.has_nvme(),
                false => self.set_timer(at),
            }
        }
        for (at, read) in [(self.disk.read_at, true), (self.disk.write_at, false)] {
            match at <= self.now {
                _ if at == 0 => {}
                true if read => {
                    self.disk.read_at = 0;
                    self.wake_all();
                }
                true => {
                    self.disk.write_at = 0;
                    self.wake_disk();
                }
                false => self.set_timer(at),
            }
        }
    }

    /// Return when transfers may start again after `fails` consecutive failures, in microseconds.
    pub(crate) fn after_failures(&mut self, fails: u8) -> u64 {
        let at = self.now.saturating_add((RETRY_US << fails.min(16)).min(RETRY_MAX_US));
        self.set_timer(at);
        at
    }

    fn pages_written(&mut self, transfer: Transfer, status: Status, bad: &[u32]) {
        let ok = status == Status::Ok || mutants::on(Mutant::FailedWriteIsClean);
        let mut frames = transfer.frames;
        while let Some((at, page)) = self.host.end_transfer(&mut frames, IoKind::Write) {
            let class = self.host.class_of(at);
            self.pages[page as usize].set_writing(false);
            if self.pages[page as usize].host != at {
                // Given up meanwhile: the slot holds stale data of the page.
                self.host.free(at);
                self.settle_page(page);
                continue;
            }
            if ok {
                // If it went out of window while a mapped frame shows it, it is not on disk: it must never be read again.
                let out_of_window = self.pages[page as usize].out_of_window();
                self.pages[page as usize].set_on_disk(!out_of_window);
                self.counters.transitions += 1;
                self.counters.host_to_nvme.add(transfer.reason, self.geo.classes[usize::from(class)].page_bytes);
            } else {
                self.counters.host_to_nvme.failed += 1;
            }
            self.settle_page(page);
            if status == Status::Corrupt && bad.contains(&u32::from(self.geo.plane_of(page))) {
                self.host_copy_is_bad(page);
            }
        }
        self.host_freed();
        let b = transfer.block;
        if status == Status::Corrupt {
            // The device did not fail.
            return self.wake_readers(b);
        }
        if status == Status::Ok {
            (self.disk.write_fails, self.disk.suspects, self.blocks[b].write_fails) = (0, 0, 0);
            return;
        }
        if transfer.sent_us >= self.disk.write_failed_us {
            self.disk.write_fails = self.disk.write_fails.saturating_add(1);
            self.disk.write_failed_us = self.now.max(1);
        }
        self.disk.failed_with = if status == Status::NoSpace { status } else { Status::Io };
        if let Some(status) = self.disk_failing() {
            self.fail_publishes(status);
            self.wake_all();
        }
        self.disk.write_at = self.after_failures(self.disk.write_fails);
        if status == Status::Io {
            self.blocks[b].write_fails = self.blocks[b].write_fails.saturating_add(1);
            self.suspect_slot(b);
        }
    }

    /// Retire a slot that fails repeatedly while others do not, and try another one. If all slots fail, the disk is at fault:
    /// then retire only a few.
    fn suspect_slot(&mut self, b: BlockId) {
        let fails = self.blocks[b].write_fails;
        let others_work = self.disk.write_fails < fails;
        if fails < IO_TRIES
            || !self.blocks[b].live()
            || self.is_slot_gone(b)
            || !others_work && self.disk.suspects >= SUSPECTS_MAX
        {
            return;
        }
        if self.retire_slot(b) {
            self.blocks[b].write_fails = 0;
            self.disk.suspects += u8::from(!others_work);
        }
    }

    fn pages_read(&mut self, transfer: Transfer, status: Status, bad: &[u32]) {
        let ok = status == Status::Ok || status == Status::Io && mutants::on(Mutant::FailedReadIsSuccess);
        match status {
            Status::Ok => self.disk.read_fails = 0,
            _ => {
                self.disk.read_fails = self.disk.read_fails.saturating_add(1);
                self.disk.read_at = self.after_failures(self.disk.read_fails);
            }
        }
        let mut frames = transfer.frames;
        self.disk_link.end(self.now, self.bytes_of(&frames), ok);
        while let Some((at, page)) = self.host.end_transfer(&mut frames, IoKind::Read) {
            self.pages[page as usize].set_reading(false);
            let plane = u32::from(self.geo.plane_of(page));
            let torn = ok && bad.contains(&plane) && !mutants::on(Mutant::BadPageIsValid);
            // The page may have changed since the read began.
            let wanted = self.pages[page as usize].on_disk() && self.blocks[transfer.block].live();
            if ok && !torn && wanted {
                let class = usize::from(self.host.class_of(at));
                let p = &mut self.pages[page as usize];
                debug_assert!(p.host == NONE);
                p.host = at;
                p.set_read_fails(0);
                self.counters.transitions += 1;
                self.counters.nvme_to_host.add(transfer.reason, self.geo.classes[class].page_bytes);
                self.settle_page(page);
                continue;
            }
            self.host.free(at);
            self.counters.checksum_failed += u64::from(torn);
            self.counters.nvme_to_host.failed += u64::from(!ok || torn);
            if wanted && (torn || status == Status::Io || status == Status::NoSpace) {
                self.read_failed(page, if torn { Cause::Corrupt } else { Cause::Unreadable });
            }
        }
        // Wake these readers first. Callers that wait for a frame would otherwise take this one, and the page would be read
        // again.
        self.wake_readers(transfer.block);
        self.host_freed();
    }

    /// Handle a copy on disk that could not be read or failed its checksum. After [`IO_TRIES`] attempts the copy counts as lost.
    fn read_failed(&mut self, page: u32, cause: Cause) {
        let fails = self.pages[page as usize].read_fails() + 1;
        self.pages[page as usize].set_read_fails(fails);
        if fails < IO_TRIES {
            self.counters.io_retries += 1;
            return;
        }
        self.pages[page as usize].set_read_fails(0);
        self.pages[page as usize].set_on_disk(false);
        self.counters.transitions += 1;
        self.settle_page(page);
        let b = self.geo.block_of(page);
        let was_published = self.blocks[b].entry != NONE;
        self.lose_if_nowhere(page, cause);
        self.counters.entries_corrupt += u64::from(was_published && self.blocks[b].entry == NONE);
        self.unrecord(b);
    }

    /// Wake the sessions that may wait for a page of the block.
    fn wake_readers(&mut self, b: BlockId) {
        let (home, shared) = (self.blocks[b].home, self.blocks[b].refs_other > 0);
        // Besides the transfer and loads, a read by hash may name it, which has no reference.
        let by_hash = self.blocks[b].in_flight > 1 && self.reads_by_hash();
        if shared || by_hash {
            self.wake_all();
        } else if self.blocks[b].refs_home > 0 {
            self.wake_next(home);
        }
    }
}

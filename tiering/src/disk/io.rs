//! Start and end of transfers between host and NVMe.
//!
//! A transfer counts as in flight on its block, so the block's id and slot stay until its `IoDone`. Its host frames are in its
//! own list, so they are not evicted. While a page is written or read, no other operation starts between its host frame and its
//! slot.

use crate::actions::{ActionBuf, LIST_MAX};
use crate::api::{Action, BlockId, Cause, IoClass, IoKind, NONE, Status};
use crate::counters::Reason;
use crate::disk::DiskTier;
use crate::error::Error;
use crate::lists::List;
use crate::mutants::{self, Mutant};
use crate::sessions::{Ops, Work};
use crate::tables::disk::{IO_TRIES, Transfer};

/// Words per page in a transfer's list.
pub(crate) const WORDS: usize = 3;

/// Maximum pages of one transfer, limited by the list.
pub(crate) const IO_PAGES_MAX: usize = LIST_MAX / WORDS;

impl DiskTier {
    /// Return whether a read by hash is in progress.
    fn reads_by_hash(&self) -> bool {
        let reads = |ops: &Ops| ops.copying.iter(&ops.recs).any(|op| matches!(ops[op].work, Work::LoadHashed(_)));
        self.has_read_by_hash && self.sessions().iter().any(|session| reads(&session.ops))
    }

    /// Return whether a transfer of that class can start now. A quarter of the transfers is reserved for demand reads.
    pub(crate) fn can_move(&mut self, class: IoClass, buf: &ActionBuf) -> bool {
        self.disk.may_transfer(class) && buf.room() > 0 && buf.words_room() >= self.words_of_block()
    }

    /// Return the words of a transfer of a whole block.
    pub(crate) fn words_of_block(&self) -> usize {
        WORDS * self.geo().planes.len().min(IO_PAGES_MAX)
    }

    /// Start a transfer of the pages with their host frames in `frames`. The caller checked [`Self::can_move`].
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
            buf.push_word(u32::from(self.geo().plane_of(page)));
            buf.push_word(place.slab);
            buf.push_word(place.slot);
        }
        self.add_in_flight(b);
        let bytes = if kind == IoKind::Read { self.bytes_of(&frames) } else { 0 };
        let transfer = Transfer::new((kind, class, reason), b, frames, self.now());
        let slot = self.block(b).slot;
        let (id, at) = self.disk.start_transfer(transfer, slot, bytes);
        let list = (start, buf.list_start() - start);
        let action = Action::Io { id, kind, class, at, list };
        self.emit_listed(action, list, buf);
    }

    /// Return the bytes of the pages in a transfer's host frames.
    fn bytes_of(&self, frames: &List) -> u32 {
        let class = |at| usize::from(self.host.class_of(at));
        let bytes = self.host.in_transfer(frames).map(|(at, _)| self.geo().classes[class(at)].page_bytes);
        bytes.fold(0, u32::saturating_add)
    }

    /// Raise the urgency of the read of a page that a caller waits for.
    pub(crate) fn urge(&mut self, page: u32, class: IoClass, buf: &mut ActionBuf) {
        // Callers poll; usually all reads in flight are urgent already.
        if !self.disk.has_lazy_reads() {
            return;
        }
        let b = self.geo().block_of(page);
        if buf.room() > 0
            && let Some(id) = self.urge_transfer(b, page, class)
        {
            self.counters.prefetch_late += 1;
            self.emit(Action::Urge { id, class }, &[], buf);
        }
    }

    /// Process the end of a transfer.
    pub(crate) fn io_done(&mut self, id: u32, status: Status, bad: &[u32]) -> Result<(), Error> {
        let (transfer, is_awaited) = self.disk.end_transfer(id)?;
        if is_awaited {
            self.wake_all();
        }
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

    fn pages_written(&mut self, transfer: Transfer, status: Status, bad: &[u32]) {
        let ok = status == Status::Ok || mutants::on(Mutant::FailedWriteIsClean);
        let mut frames = transfer.frames;
        while let Some((at, page)) = self.host.end_transfer(&mut frames, IoKind::Write) {
            let class = self.host.class_of(at);
            self.set_writing(page, false);
            if self.page(page).host != at {
                // Given up meanwhile: the slot holds stale data of the page.
                self.host.free(at);
                self.settle_page(page);
                continue;
            }
            if ok {
                // If it went out of window while a mapped frame shows it, it is not on disk: it must never be read again.
                let out_of_window = self.page(page).out_of_window();
                self.set_on_disk(page, !out_of_window);
                self.counters.transitions += 1;
                let page_bytes = self.geo().classes[usize::from(class)].page_bytes;
                self.counters.host_to_nvme.add(transfer.reason, page_bytes);
            } else {
                self.counters.host_to_nvme.failed += 1;
            }
            self.settle_page(page);
            if status == Status::Corrupt && bad.contains(&u32::from(self.geo().plane_of(page))) {
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
            self.disk.write_succeeded();
            self.set_write_fails(b, 0);
            return;
        }
        let now = self.now();
        let retry_at = self.disk.write_failed(transfer.sent_us, status, now);
        self.set_timer(retry_at);
        if let Some(status) = self.disk.failing() {
            self.fail_publishes(status);
            self.wake_all();
        }
        if status == Status::Io {
            let fails = self.block(b).write_fails.saturating_add(1);
            self.set_write_fails(b, fails);
            self.suspect_slot(b);
        }
    }

    /// Retire a slot that fails repeatedly while others do not, and try another one. If all slots fail, the disk is at fault:
    /// then retire only a few.
    fn suspect_slot(&mut self, b: BlockId) {
        let fails = self.block(b).write_fails;
        if fails < IO_TRIES || !self.block(b).live() || self.is_slot_gone(b) || !self.disk.may_suspect(fails) {
            return;
        }
        if self.retire_slot(b) {
            self.set_write_fails(b, 0);
            self.disk.count_suspect(fails);
        }
    }

    fn pages_read(&mut self, transfer: Transfer, status: Status, bad: &[u32]) {
        let ok = status == Status::Ok || status == Status::Io && mutants::on(Mutant::FailedReadIsSuccess);
        match status {
            Status::Ok => self.disk.read_succeeded(),
            _ => {
                let now = self.now();
                let retry_at = self.disk.read_failed(now);
                self.set_timer(retry_at);
            }
        }
        let mut frames = transfer.frames;
        let bytes = self.bytes_of(&frames);
        let now = self.now();
        self.disk.measure_read(now, bytes, ok);
        while let Some((at, page)) = self.host.end_transfer(&mut frames, IoKind::Read) {
            self.set_reading(page, false);
            let plane = u32::from(self.geo().plane_of(page));
            let torn = ok && bad.contains(&plane) && !mutants::on(Mutant::BadPageIsValid);
            // The page may have changed since the read began.
            let wanted = self.page(page).on_disk() && self.block(transfer.block).live();
            if ok && !torn && wanted {
                let class = usize::from(self.host.class_of(at));
                self.came_to_host(page, at);
                self.set_read_fails(page, 0);
                let page_bytes = self.geo().classes[class].page_bytes;
                self.counters.nvme_to_host.add(transfer.reason, page_bytes);
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
        let fails = self.page(page).read_fails() + 1;
        self.set_read_fails(page, fails);
        if fails < IO_TRIES {
            self.counters.io_retries += 1;
            return;
        }
        self.set_read_fails(page, 0);
        self.set_on_disk(page, false);
        self.counters.transitions += 1;
        self.settle_page(page);
        let b = self.geo().block_of(page);
        let was_published = self.block(b).entry != NONE;
        self.lose_if_nowhere(page, cause);
        self.counters.entries_corrupt += u64::from(was_published && self.block(b).entry == NONE);
        self.unrecord(b);
    }

    /// Wake the sessions that may wait for a page of the block.
    fn wake_readers(&mut self, b: BlockId) {
        let (home, shared) = (self.block(b).home, self.block(b).refs_other > 0);
        // Besides the transfer and loads, a read by hash may name it, which has no reference.
        let by_hash = self.block(b).in_flight > 1 && self.reads_by_hash();
        if shared || by_hash {
            self.wake_all();
        } else if self.block(b).refs_home > 0 {
            self.wake_next(home);
        }
    }
}

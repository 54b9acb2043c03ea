//! Write-back to NVMe: pages in host are written to their block's slot, the least recently used first, so that evicting them later
//! moves no bytes.

use crate::actions::ActionBuf;
use crate::api::{BlockId, IoClass, IoKind, NONE};
use crate::blocks::PersistState;
use crate::counters::Reason;
use crate::disk::IO_PAGES_MAX;
use crate::host::HostTier;
use crate::lists::List;
use crate::tables::host::HostOn;

/// Maximum number of dirty pages that one search skips because no slot is free.
const SEARCH_MAX: u32 = 1 << 12;

/// Maximum number of blocks to persist that one call considers.
const PERSIST_MAX: u32 = 64;

impl HostTier {
    /// Start writes for classes with too few host frames that are free or clean, or where a request found none. Return false if it
    /// stopped for lack of room in the buffer.
    pub(crate) fn issue_disk(&mut self, buf: &mut ActionBuf) -> bool {
        if let Some(at) = self.disk.writes_paused_until(self.now()) {
            self.set_timer(at);
            return true;
        }
        for class in 0..self.geo().classes.len() as u8 {
            if !self.write_back_class(class, buf) {
                return false;
            }
        }
        self.write_blocks_to_persist(buf)
    }

    /// Write the blocks to persist, a bounded number at a time, after all transfers that requests wait for. Return false if it
    /// stopped for lack of room in the buffer.
    fn write_blocks_to_persist(&mut self, buf: &mut ActionBuf) -> bool {
        let mut no_slots = false;
        for _ in 0..self.blocks().to_write_count().min(PERSIST_MAX) {
            let b = self.blocks().next_to_write();
            if b == NONE || self.disk.writes_take(4) {
                return true;
            }
            if self.stage_of(b) != PersistState::Write {
                self.update_persist(b);
                continue;
            }
            if !self.can_move(IoClass::WriteBack, buf) {
                return buf.room() > 0 && buf.words_room() >= self.words_of_block();
            }
            if no_slots && self.block(b).slot == NONE || !self.give_slot(b, false) {
                if self.disk.slots_to_come() {
                    return true;
                }
                // Other blocks may have slots. This block is tried again when a slot becomes free. If the block itself was dropped
                // as the least valuable, that says nothing about the others.
                no_slots |= self.block(b).live();
                if self.block(b).persist == PersistState::Write {
                    self.no_slot_for(b);
                }
                continue;
            }
            self.write_block(b, IoClass::WriteBack, buf);
            self.update_persist(b);
        }
        if no_slots {
            self.end_publishes_without_slots();
        }
        true
    }

    fn write_back_class(&mut self, class: u8, buf: &mut ActionBuf) -> bool {
        let policy = self.cfg().policy;
        loop {
            let percent = (policy.host_clean_low_percent, policy.host_clean_high_percent);
            let Some(shortage) = self.host.must_write(class, percent) else { return true };
            // If the class can grow, write-back is not needed.
            if !shortage && self.ask_slab(class) {
                return true;
            }
            let io = if shortage { IoClass::Demand } else { IoClass::WriteBack };
            if self.disk.writes_take(2) {
                return true;
            }
            if !self.can_move(io, buf) {
                return buf.room() > 0 && buf.words_room() >= self.words_of_block();
            }
            let Some(b) = self.next_to_write(class, shortage) else {
                self.host.forget_shortage(class);
                return true;
            };
            self.write_block(b, io, buf);
        }
    }

    /// Return the block of the oldest dirty page that has a slot or gets one. A preferred block, worth more than most, comes first.
    fn next_to_write(&mut self, class: u8, urgent: bool) -> Option<BlockId> {
        let preferred = self.blocks().next_preferred();
        if preferred != NONE && self.stage_of(preferred) == PersistState::Write && self.give_slot(preferred, urgent) {
            return Some(preferred);
        }
        for _ in 0..self.host.dirty(class).min(SEARCH_MAX) {
            let head = self.host.first(class, HostOn::Dirty);
            if head == NONE {
                return None;
            }
            let b = self.geo().block_of(self.host.page_of(head));
            if self.give_slot(b, urgent) {
                return Some(b);
            }
            if self.disk.slots_to_come() {
                return None;
            }
            // No slots are free: later pages may have theirs.
            self.host.pass_over(head);
        }
        if self.disk.exhaust() {
            // Requests that wait for a frame must find another way.
            self.host_freed();
        }
        None
    }

    /// Write all pages of a block that are in host and not on disk, in one transfer.
    fn write_block(&mut self, b: BlockId, io: IoClass, buf: &mut ActionBuf) {
        let (mut frames, mut bytes) = (List::default(), 0);
        for page in self.pages_of(b) {
            let p = self.page(page);
            let at = p.host;
            if at == NONE
                || p.out_of_window()
                || p.on_disk()
                || p.writing()
                || p.reading()
                || frames.len as usize == IO_PAGES_MAX
            {
                continue;
            }
            self.set_writing(page, true);
            let class = usize::from(self.host.class_of(at));
            bytes += u64::from(self.geo().classes[class].page_bytes);
            self.host.begin_transfer(&mut frames, at, IoKind::Write);
        }
        self.charge_write(b, bytes);
        self.move_pages((IoKind::Write, io, Reason::Clean), b, frames, buf);
    }
}

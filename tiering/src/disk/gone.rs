//! A disk goes out of service: entries that were only there are lost, the rest continues.

use crate::api::{BlockId, Cause, NONE};
use crate::blocks::PersistState;
use crate::disk::DiskTier;
use crate::error::Error;
use crate::tables::disk::{Logged, Place};
use crate::tables::index::ShardCopy;

impl DiskTier {
    pub(crate) fn disk_gone(&mut self, slab: u32) -> Result<(), Error> {
        let Some((from, to)) = self.disk.range(slab) else {
            return Err(Error::Slab { slab, why: "is not granted" });
        };
        // Allocates memory; disk failures are rare.
        let held: Vec<(u32, Place)> = (from..to).map(|at| (at, self.disk.place(at))).collect();
        self.disk.lose(slab);
        self.counters.disks_gone += 1;
        for (at, place) in held {
            let owner = self.disk.owner(at);
            match place {
                Place::IndexOnly if self.copies(owner).any(|copy| copy == ShardCopy::IndexOnly(at)) => {
                    self.counters.entries_gone += 1;
                    self.remove_entry(owner, Cause::DiskLost);
                }
                Place::Block if self.block(owner).slot == at => self.slot_gone(owner),
                _ => {}
            }
        }
        self.host_freed();
        self.wake_all();
        self.wake_admission();
        self.disk.wake();
        Ok(())
    }

    /// Return whether the block's slot is on a disk that is out of service.
    pub(crate) fn is_slot_gone(&self, b: BlockId) -> bool {
        let at = self.block(b).slot;
        at != NONE && self.disk.place(at) == Place::Gone
    }

    /// Drop the block's slot, and its copies of pages, once no transfer names it. Data that a read in flight delivers is still
    /// valid.
    pub(crate) fn slot_gone(&mut self, b: BlockId) {
        if self.disk.moves_block(b) {
            // Its record is no longer valid, nor are those of its descendants.
            if self.block(b).entry != NONE {
                self.unrecord_subtree(self.block(b).entry, self.block(b).shard);
            }
            return;
        }
        let was_persisted = self.disk.logged(self.block(b).slot) == Logged::Recorded
            || self.block(b).persist != PersistState::No && self.block(b).persist != PersistState::Erase;
        self.set_slot(b, NONE);
        self.set_persist(b, PersistState::No);
        if self.block(b).entry != NONE {
            self.unrecord_subtree(self.block(b).entry, self.block(b).shard);
        }
        for page in self.pages_of(b) {
            if self.page(page).on_disk() {
                self.set_on_disk(page, false);
                self.counters.transitions += 1;
                self.settle_page(page);
            }
        }
        for page in self.pages_of(b) {
            self.lose_if_nowhere(page, Cause::DiskLost);
        }
        if was_persisted && self.block(b).entry != NONE {
            self.set_persist(b, PersistState::Waits);
            self.update_persist(b);
        }
        self.wake_all();
    }

    /// Invalidate the block's record because its slot lacks a page that the record names.
    pub(crate) fn unrecord(&mut self, b: BlockId) {
        let at = self.block(b).slot;
        if at == NONE || self.block(b).entry == NONE || !self.disk.invalidate_record(at) {
            return;
        }
        self.unrecord_subtree(self.block(b).entry, self.block(b).shard);
        self.set_persist(b, PersistState::Waits);
        self.update_persist(b);
    }

    /// Invalidate the records of a shard's copies of all descendants of `top`; its own record is no longer valid.
    fn unrecord_subtree(&mut self, top: u32, shard: u16) {
        let mut next = self.index.next_below(top, top);
        while let Some(c) = next {
            let any = self.copy_of(c, shard).is_some_and(|copy| self.unrecord_copy(copy));
            // All records below an invalid one are invalid already.
            next = if any { self.index.next_below(c, top) } else { self.index.next_beside(c, top) };
        }
    }

    fn unrecord_copy(&mut self, copy: ShardCopy) -> bool {
        let at = match copy {
            ShardCopy::End => NONE,
            ShardCopy::Block(b) => self.block(b).slot,
            ShardCopy::IndexOnly(at) => at,
        };
        if at == NONE || !self.disk.is_recorded(at) {
            return false;
        }
        self.disk.invalidate_record(at);
        if let ShardCopy::Block(b) = copy {
            self.set_persist(b, PersistState::Waits);
            self.update_persist(b);
        }
        true
    }
}

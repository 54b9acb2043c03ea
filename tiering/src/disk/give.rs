//! NVMe slots for blocks: allocation, and the return of slabs to the node.

use crate::api::{Action, BlockId, NONE};
use crate::disk::DiskTier;
use crate::error::Error;
use crate::mutants::{self, Mutant};
use crate::tables::disk::Choice;

impl DiskTier {
    /// Ask the node for NVMe space, unless it cannot help now. Return true while an answer is pending.
    pub(crate) fn ask_disk(&mut self) -> bool {
        self.ask_disk_on(None)
    }

    /// Ask the node for NVMe space, preferably on a given disk. Return true while an answer is pending.
    fn ask_disk_on(&mut self, disk: Option<u16>) -> bool {
        let nvme_bytes_max = self.cfg().limits.nvme_bytes_max;
        if self.disk.ask(disk, nvme_bytes_max) {
            self.act(Action::NeedDisk { disk: disk.unwrap_or(u16::MAX) });
        }
        self.disk.is_asked()
    }

    pub(crate) fn disk_granted(&mut self, slab: u32, slots: u32, disk: u16, generation: u32) -> Result<(), Error> {
        self.disk.grant_asked(slab, slots, disk, generation)?;
        self.wake_all();
        Ok(())
    }

    pub(crate) fn disk_refused(&mut self) -> Result<(), Error> {
        self.disk.refuse()?;
        self.wake_all();
        Ok(())
    }

    /// Return true if the block has a slot, or allocate one. If no slot is free, evict unreferenced entries, least recently used
    /// first. Their slots are free at once or after the erasure of their records (see `DiskTier::slots_to_come`). `urgent`: a
    /// caller waits for the block's host frames.
    pub(crate) fn give_slot(&mut self, b: BlockId, urgent: bool) -> bool {
        if self.block(b).slot != NONE {
            return !self.is_slot_gone(b);
        }
        if self.disk.free_slots() == 0 {
            if self.ask_disk() {
                return false;
            }
            while self.block(b).live() && self.disk.lacks_slots() && self.drop_for_slot() {}
            if !self.block(b).live() {
                // The block itself belonged to an evicted entry.
                return false;
            }
        }
        let disk = match self.disk.choose(self.preferred_disk(b), self.cfg().limits.nvme_bytes_max, urgent) {
            Choice::On(disk) => disk,
            Choice::Overflow(disk) => {
                self.counters.chains_overflowed += 1;
                disk
            }
            Choice::Ask(disk) => {
                self.ask_disk_on(disk);
                return false;
            }
            Choice::Nowhere => return false,
        };
        let Some(at) = self.disk.take(disk, b) else { return false };
        self.set_slot(b, at);
        self.set_preferred_disk(b, disk);
        true
    }

    /// Return the preferred disk of a block: the disk of its parent's slot. If the parent has no slot: the disk that the block's
    /// sequence last wrote to or attached from.
    fn preferred_disk(&self, b: BlockId) -> Option<u16> {
        let block = self.block(b);
        let parent = if block.entry == NONE { NONE } else { self.index.parent(block.entry) };
        let copy = if parent == NONE { None } else { self.copy_of(parent, block.shard) };
        let slot = copy.and_then(|copy| copy.slot().or_else(|| copy.block().map(|p| self.block(p).slot)));
        match slot.filter(|&at| at != NONE) {
            Some(at) => Some(self.disk.disk_of(at)),
            None => self.chain_of(b).and_then(|(s, seq)| self.lists(s).seqs[seq as usize].disk()),
        }
    }

    /// Stop using the block's slot for good, because writes to it fail. Return false if pages have their only copy there.
    pub(crate) fn retire_slot(&mut self, b: BlockId) -> bool {
        let copies = |core: &DiskTier, page: u32| {
            let p = core.page(page);
            let busy = p.reading() || p.writing();
            busy || p.on_disk() && p.host == NONE
        };
        if self.pages_of(b).any(|page| copies(self, page)) {
            return false;
        }
        for page in self.pages_of(b) {
            self.set_on_disk(page, false);
            self.settle_page(page);
        }
        let at = self.set_slot(b, NONE);
        self.disk.retire(at);
        true
    }

    /// Invalidate the copy on disk of a page that the engine is about to change.
    pub(crate) fn forget_disk_copy(&mut self, page: u32) {
        if !mutants::on(Mutant::StaleDiskCopy) {
            self.set_on_disk(page, false);
        }
    }

    /// Return one free slab that no admitted block needs. Keep a tenth of the granted slabs, and all of them while a request
    /// waits for admission: it would ask for the returned slab again.
    pub(crate) fn return_idle_disk(&mut self) {
        if self.sessions().iter().any(|s| !s.ops.admission.is_empty()) {
            return;
        }
        let committed = (self.blocks().referred + self.blocks().promised).saturating_sub(self.disk.used());
        if let Some(slab) = self.disk.return_slab(committed) {
            self.act(Action::ReturnDisk { slab });
        }
    }

    /// Above the high watermark, evict stored unreferenced entries, least recently used first, down to the low watermark.
    pub(crate) fn trim_disk(&mut self) {
        let policy = self.cfg().policy;
        let limit = self.disk.slots_max(self.cfg().limits.nvme_bytes_max);
        let high = u128::from(limit) * u128::from(policy.nvme_high_percent) / 100;
        let low = u128::from(limit) * u128::from(policy.nvme_low_percent) / 100;
        if high == 0 || u128::from(self.disk.used()) < high {
            return;
        }
        while u128::from(self.disk.used()) > low && self.drop_stored_entry() {
            self.counters.nvme_drops += 1;
        }
    }
}

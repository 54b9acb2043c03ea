//! Published cache entries: their shard copies, and removal from the index by eviction or loss.

use crate::api::{BlockId, Cause, NONE, Status};
use crate::blocks::PersistState;
use crate::index::PrefixIndex;
use crate::mutants::{self, Mutant};
use crate::tables::index::{Absence, ShardCopy, WITH_BLOCK, WITH_SLOT};

/// Maximum frames examined in one search for an entry in tier 0 to drop.
const FRAMES_MAX: usize = 256;

/// Maximum entries dropped for their age in one tick.
const EXPIRE_MAX: usize = 256;

/// Maximum entries examined in one search.
pub(crate) const EXAMINED_MAX: usize = 256;

impl PrefixIndex {
    /// Count the blocks lost with a cache entry that is about to be dropped: rejected by the write budget, or not written yet. Return what
    /// has kept a block of it from NVMe, if anything.
    fn count_lost(&mut self, c: u32) -> Option<Cause> {
        let on_its_way = |b: BlockId| {
            !matches!(self.block(b).persist, PersistState::No | PersistState::Erase) && !self.is_recorded(b)
        };
        let unwritten = self.copies(c).filter_map(ShardCopy::block).filter(|&b| on_its_way(b)).count() as u64;
        self.counters.unwritten_drops += unwritten;
        self.counters.unwritten_drop_bytes += unwritten * self.disk.slot_bytes();
        let lost = self.copies(c).filter_map(ShardCopy::block).filter(|&b| self.block(b).over_budget).count() as u64;
        self.counters.over_budget_drops += lost;
        self.counters.over_budget_drop_bytes += lost * self.disk.slot_bytes();
        let mut blocks = self.copies(c).filter_map(ShardCopy::block);
        match (lost, unwritten) {
            (1.., _) => Some(Cause::OverBudget),
            (0, 1..) => Some(Cause::Unwritten),
            (0, 0) => blocks.any(|b| self.block(b).not_admitted).then_some(Cause::NotAdmitted),
        }
    }

    /// Return whether the first or the last page of a block is only on NVMe.
    pub(crate) fn is_far(&self, b: BlockId) -> bool {
        let pages = self.pages_of(b);
        let far = |page: u32| {
            let p = self.page(page);
            p.on_disk() && p.host == NONE && p.frame == NONE
        };
        far(pages.start) || far(pages.end - 1)
    }

    /// Mark a page as lost if it is in no tier any more. Its block is not found by new readers; sequences that refer to it fail
    /// at their next fault.
    pub(crate) fn lose_if_nowhere(&mut self, page: u32, cause: Cause) {
        let (p, b) = (self.page(page), self.geo().block_of(page));
        if p.below() || p.frame != NONE || p.out_of_window() || p.lost() || !self.block(b).live() {
            return;
        }
        self.set_lost(page);
        self.counters.pages_lost += 1;
        let entry = self.block(b).entry;
        if entry != NONE {
            self.remove_entry(entry, cause);
        }
    }

    /// Return the shard copies of an entry.
    pub(crate) fn copies(&self, c: u32) -> impl Iterator<Item = ShardCopy> {
        let first = Some(self.index.first_copy(c));
        std::iter::successors(first, |&copy| Some(self.copy_after(copy))).take_while(|&copy| copy != ShardCopy::End)
    }

    pub(crate) fn copy_after(&self, copy: ShardCopy) -> ShardCopy {
        match copy {
            ShardCopy::End => ShardCopy::End,
            ShardCopy::Block(b) => self.block(b).next_copy.get(),
            ShardCopy::IndexOnly(at) => self.disk.next_copy(at),
        }
    }

    /// Return an entry's copy of a shard.
    pub(crate) fn copy_of(&self, c: u32, shard: u16) -> Option<ShardCopy> {
        self.copies(c).find(|&copy| match copy {
            ShardCopy::End => false,
            ShardCopy::Block(b) => self.block(b).shard == shard,
            ShardCopy::IndexOnly(at) => self.disk.shard(at) == shard,
        })
    }

    /// Replace `old` by `new` in an entry's chain. The caller has linked `new` to the successor of `old`.
    pub(crate) fn replace_copy(&mut self, c: u32, old: ShardCopy, new: ShardCopy) {
        let before = self.copies(c).find(|&copy| self.copy_after(copy) == old);
        let slots = [old, new].map(|copy| self.slots(copy));
        self.index.replace_copy(c, (old, slots[0]), (new, slots[1]));
        match before {
            None | Some(ShardCopy::End) => {}
            Some(ShardCopy::Block(b)) => self.set_next_copy(b, new),
            Some(ShardCopy::IndexOnly(at)) => self.disk.set_next_copy(at, new),
        }
    }

    /// Return how many slots a shard copy has.
    pub(crate) fn slots(&self, copy: ShardCopy) -> u16 {
        u16::from(copy.block().is_none_or(|b| self.block(b).slot != NONE))
    }

    /// Evict the first leaf. Return false if there is none.
    pub(crate) fn drop_idle_entry(&mut self) -> bool {
        self.index.first_leaf().map(|leaf| self.drop_leaf(leaf, Cause::MemoryFull)).is_some()
    }

    /// Update the capacity of the eviction order: the number of entries that the tiers hold.
    pub(crate) fn size_order(&mut self) {
        let shards = u64::from(self.cfg().shards);
        let block_bytes: u64 = self.geo().classes.iter().map(|c| u64::from(c.stride) * u64::from(c.planes)).sum();
        let host = self.host.bytes_max(&self.geo().classes, self.cfg().limits.host_bytes_max) / block_bytes / shards;
        if !self.disk.exists() {
            return self.index.set_capacity(host, 0);
        }
        let slots = self.disk.slots_max(self.cfg().limits.nvme_bytes_max);
        let entries = (slots / shards).min(u64::from(self.cfg().limits.entries_max));
        self.index.set_capacity(entries.max(host), host.min(entries));
    }

    /// Update the load time in the eviction order from the measured rates of the lowest tier: entries close to eviction have
    /// usually left the upper tiers. Shards load in parallel. A load from NVMe passes through host memory and takes as long as
    /// the slower of the two steps.
    pub(crate) fn measure_load_costs(&mut self) {
        let us = |bytes: u64, rate: f32| if rate > 0.0 { bytes as f64 / f64::from(rate) } else { 0.0 };
        let bus = self.tier0s().iter().map(|tier0| tier0.link.rate).fold(0.0, f32::max);
        let nvme = us(self.disk.slot_bytes() * u64::from(self.cfg().shards), self.disk.read_rate());
        let slot_bytes = self.disk.slot_bytes();
        self.index.set_load_us(us(slot_bytes, bus).max(nvme));
    }

    /// Drop entries that were not used for the configured TTL, even if there is room; at most [`EXPIRE_MAX`] per call.
    pub(crate) fn expire_entries(&mut self) {
        for _ in 0..EXPIRE_MAX {
            let Some(leaf) = self.index.expired() else { return };
            self.counters.expired += 1;
            self.counters.cache_drops += 1;
            self.remove_entry(leaf, Cause::Expired);
        }
    }

    /// Return the estimates of the space's ghost caches for other sizes and policies.
    pub(crate) fn eviction_advice(&self) -> crate::evict::Advice {
        crate::evict::Advice {
            entry_bytes: self.disk.slot_bytes() * u64::from(self.cfg().shards),
            ..self.index.advice()
        }
    }

    /// Drop an entry that has no children. If memory is needed, the cause is rather what has kept the entry from NVMe.
    pub(crate) fn drop_leaf(&mut self, leaf: u32, cause: Cause) {
        self.counters.cache_drops += 1;
        let unwritten = self.count_lost(leaf).filter(|_| matches!(cause, Cause::MemoryFull | Cause::OtherSpace));
        self.remove_entry(leaf, unwritten.unwrap_or(cause));
    }

    /// Drop an entry after its descendants.
    fn drop_entry(&mut self, c: u32, cause: Cause) {
        let mut leaf = self.index.leaf_of(c);
        loop {
            let above = self.index.parent(leaf);
            self.drop_leaf(leaf, cause);
            if leaf == c {
                return;
            }
            leaf = self.index.leaf_of(above);
        }
    }

    /// Evict the first entry among those with blocks. This frees block ids and host frames. Return false if there is none.
    pub(crate) fn drop_entry_with_block(&mut self) -> bool {
        self.index.first(&WITH_BLOCK).map(|c| self.drop_entry(c, Cause::MemoryFull)).is_some()
    }

    /// Evict the first entry among those with slots on NVMe. Return false if there is none.
    pub(crate) fn drop_stored_entry(&mut self) -> bool {
        self.index.first(&WITH_SLOT).map(|c| self.drop_entry(c, Cause::NvmeFull)).is_some()
    }

    /// Evict an entry to free a slot for another entry. If the first entry in order still waits to be written and there are entries
    /// with slots, drop it instead: once written it would be evicted before all of them. An entry that is not to be written needs no
    /// slot.
    pub(crate) fn drop_for_slot(&mut self) -> bool {
        let Some(stored) = self.index.first(&WITH_SLOT) else { return false };
        let first = self.index.first_leaf().filter(|&leaf| !self.index.is_held(leaf));
        let waits = |&leaf: &u32| self.copies(leaf).filter_map(ShardCopy::block).any(|b| self.is_on_its_way(b));
        match first.filter(waits) {
            // Not counted as lost before the write: the disk has no room for it, and a faster disk would not help.
            Some(leaf) => {
                self.counters.cache_drops += 1;
                self.remove_entry(leaf, Cause::NvmeFull);
            }
            None => {
                self.drop_entry(stored, Cause::NvmeFull);
                self.counters.nvme_drops += 1;
            }
        }
        true
    }

    fn is_on_its_way(&self, b: BlockId) -> bool {
        self.block(b).slot == NONE && !matches!(self.block(b).persist, PersistState::No | PersistState::Erase)
    }

    /// Drop an entry with an unreferenced shard copy that is only in the session's tier 0. The entry is not idle if another shard's copy
    /// is in use: a lease of that shard can still be loaded, but lookups do not find its prefix any more. Return false if there is none
    /// near.
    pub(crate) fn drop_entry_in_tier0(&mut self, s: u16, class: u8) -> bool {
        let session = self.tier0(s);
        let Some(c) = session.classes.get(usize::from(class)) else { return false };
        let idle = || {
            let pages = c.early.iter(&session.frames).take(FRAMES_MAX).map(|f| session.frames[f as usize].page);
            let blocks = pages.map(|page| self.block(self.geo().block_of(page)));
            let idle = blocks.filter(|block| block.refs() == 0 && block.entry != NONE).map(|block| block.entry);
            idle.filter(|&entry| !self.index.is_pinned(entry))
        };
        let leaf = idle().find(|&c| self.index.is_leaf(c) && !self.index.is_held(c));
        // Without a leaf near, the first entry with all its descendants: one walk to a leaf.
        let any = || idle().next().filter(|&c| !self.index.is_held(self.index.leaf_of(c)));
        let Some(entry) = leaf.or_else(any) else { return false };
        self.counters.cache_drops += 1;
        let cause = self.count_lost(entry).unwrap_or(Cause::MemoryFull);
        self.remove_entry(entry, cause);
        true
    }

    /// Remove an entry and its descendants from the index. Unreferenced blocks are released, and their log records are erased.
    pub(crate) fn remove_entry(&mut self, c: u32, cause: Cause) {
        let mut leaf = if mutants::on(Mutant::ParentDroppedAlone) { c } else { self.index.leaf_of(c) };
        loop {
            let above = self.index.parent(leaf);
            self.announce_removed(leaf);
            let tier = cause.is_eviction().then(|| self.lowest_tier(leaf));
            let absence = Absence { cause, tier, with_ancestor: leaf != c, at_us: self.now() };
            let mut copy = self.index.remove(leaf, absence);
            while copy != ShardCopy::End {
                let next = self.copy_after(copy);
                match copy {
                    ShardCopy::Block(b) => self.detach_block(b, leaf),
                    ShardCopy::IndexOnly(at) => self.disk.release(at),
                    ShardCopy::End => {}
                }
                copy = next;
            }
            if leaf == c {
                return;
            }
            leaf = self.index.leaf_of(above);
        }
    }

    pub(crate) fn detach_block(&mut self, b: BlockId, c: u32) {
        self.forget_entry(b);
        let waited = self.set_waited(b, false);
        let (slot, refs) = (self.block(b).slot, self.block(b).refs());
        self.set_persist(b, PersistState::No);
        self.set_over_budget(b, false);
        if waited {
            self.end_publishes(c, self.block(b).shard, Status::NotAdmitted);
        }
        if slot != NONE && self.disk.disown_record(slot) {
            self.set_persist(b, PersistState::Erase);
            self.disk.wake();
        }
        if refs == 0 {
            self.die(b);
        }
    }

    /// Drop a corrupt host copy; the page is then read from another copy. While other loads read the frame, wait: the last of
    /// them reports the mismatch.
    pub(crate) fn host_copy_is_bad(&mut self, page: u32) {
        if self.page(page).host == NONE || self.page(page).loads > 0 {
            return;
        }
        if self.is_mapped(page) {
            // Unmap it from its readers first. The next reader that finds a mismatch reports it again.
            self.unmap_page(page);
            return;
        }
        self.counters.host_corrupt += 1;
        self.drop_host_copy(page);
        self.settle_page(page);
        self.lose_if_nowhere(page, Cause::Corrupt);
        self.wake_all();
    }
}

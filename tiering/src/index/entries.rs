//! Published cache entries: their shard copies, and removal from the index by eviction or loss.

use crate::api::{BlockId, Cause, NONE, Status};
use crate::blocks::PersistState;
use crate::index::PrefixIndex;
use crate::mutants::{self, Mutant};
use crate::tables::index::{Absence, ShardCopy};

/// Maximum frames examined in one search for an entry in tier 0 to drop.
const FRAMES_MAX: usize = 256;

/// Maximum candidate entries collected in that search.
const CANDIDATES_MAX: usize = 32;

/// Maximum entries dropped for their age in one tick.
const EXPIRE_MAX: usize = 256;

/// Maximum entries that one search moves behind the others because a StoreBlocks request in progress stores their children.
const SPARED_MAX: u32 = 8;

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
        self.index.replace_copy(c, old, new);
        match before {
            None | Some(ShardCopy::End) => {}
            Some(ShardCopy::Block(b)) => self.set_next_copy(b, new),
            Some(ShardCopy::IndexOnly(at)) => self.disk.set_next_copy(at, new),
        }
    }

    /// Evict the unreferenced entry that is first in order, leaf first. Return false if there is none.
    pub(crate) fn drop_idle_entry(&mut self) -> bool {
        self.first_leaf().map(|leaf| self.drop_leaf(leaf, Cause::MemoryFull)).is_some()
    }

    /// Return the leaf below the unreferenced entry that is evicted first.
    pub(crate) fn first_leaf(&mut self) -> Option<u32> {
        let first = |core: &mut PrefixIndex| {
            let (idle, index_only) = core.index.first();
            idle.or(index_only)
        };
        let first = self.not_parent_of_store(first, |_, _| true);
        first.map(|c| self.index.next_leaf(c))
    }

    /// Return the entry that `first` chooses, but skip entries with a leaf that is the parent of a StoreBlocks request in progress.
    /// Such a leaf and its ancestors move to the end of their queues. It is returned only if no other `wanted` entry is near:
    /// then the request cannot get room without it. Entries with a block are searched before those without one.
    fn not_parent_of_store(
        &mut self,
        first: impl Fn(&mut PrefixIndex) -> Option<u32>,
        wanted: impl Fn(&PrefixIndex, u32) -> bool,
    ) -> Option<u32> {
        let mut found = first(self)?;
        for _ in 0..SPARED_MAX {
            let leaf = self.index.next_leaf(found);
            if !self.is_parent_of_store(leaf) {
                return Some(found);
            }
            self.index.touch_prefix(leaf);
            found = first(self)?;
        }
        let free = |core: &PrefixIndex, c: u32| wanted(core, c) && !core.is_parent_of_store(core.index.leaf_of(c));
        let candidate = self.candidate(false, free).or_else(|| self.candidate(true, free));
        Some(candidate.unwrap_or(found))
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
            let Some(c) = self.index.expired() else { return };
            let leaf = self.index.next_leaf(c);
            if self.index.is_active(leaf) || self.is_parent_of_store(leaf) {
                // A descendant is in use, or a request stores one, so the entry is in use too.
                self.index.touch(c);
                continue;
            }
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

    /// Evict the first entry among those with blocks. This frees block ids and host frames. Return false if there is none.
    pub(crate) fn drop_entry_with_block(&mut self) -> bool {
        let first = |core: &mut PrefixIndex| core.index.first_of(false);
        let has_block = |core: &PrefixIndex, c: u32| core.copies(c).any(|copy| copy.block().is_some());
        let Some(first) = self.not_parent_of_store(first, has_block) else { return false };
        let leaf = self.index.next_leaf(first);
        let found = match has_block(self, leaf) {
            true => Some(first),
            // The leaf is only on NVMe and frees no block. Look for a leaf that has a block.
            false => self.candidate(false, |core, c| core.index.is_leaf(c) && !core.is_parent_of_store(c)),
        };
        self.drop_below(found.unwrap_or(first), Cause::MemoryFull);
        true
    }

    /// Return an entry with a block, or without one, that satisfies `wanted` and is near the head of the eviction order.
    fn candidate(&mut self, index_only: bool, wanted: impl Fn(&PrefixIndex, u32) -> bool) -> Option<u32> {
        let first = self.index.first_of(index_only)?;
        self.index.order_from(first).take(EXAMINED_MAX).find(|&c| wanted(self, c))
    }

    /// Evict the first entry among those with slots on NVMe, leaf first. Return false if there is none near.
    pub(crate) fn drop_stored_entry(&mut self) -> bool {
        let found = self.not_parent_of_store(PrefixIndex::first_stored, PrefixIndex::has_slot);
        found.map(|c| self.drop_below(c, Cause::NvmeFull)).is_some()
    }

    fn first_stored(&mut self) -> Option<u32> {
        let (idle, index_only) = self.index.first();
        let stored = idle.filter(|&c| {
            let leaf = self.index.next_leaf(c);
            self.has_slot(leaf)
        });
        let stored = stored.or(index_only).or_else(|| self.index.first_of(true));
        stored.or_else(|| self.candidate(false, PrefixIndex::has_slot))
    }

    /// Evict an entry to free a slot for another entry. If the first entry in order still waits to be written and entries with
    /// slots are near, drop it instead: once written it would be evicted before all of them. An entry that is not to be written
    /// needs no slot.
    pub(crate) fn drop_for_slot(&mut self) -> bool {
        let first = self.index.first();
        if let (Some(first), _) = first {
            let leaf = self.index.next_leaf(first);
            let on_its_way = self.copies(leaf).filter_map(ShardCopy::block).any(|b| self.is_on_its_way(b));
            let on_its_way = on_its_way && !self.is_parent_of_store(leaf);
            if on_its_way
                && (self.index.first_of(true).is_some() || self.candidate(false, PrefixIndex::has_slot).is_some())
            {
                // Not counted as lost before the write: the disk has no room for it, and a faster disk would not help.
                self.counters.cache_drops += 1;
                self.remove_entry(leaf, Cause::NvmeFull);
                return true;
            }
        }
        let dropped = self.drop_stored_entry();
        self.counters.nvme_drops += u64::from(dropped);
        dropped
    }

    fn is_on_its_way(&self, b: BlockId) -> bool {
        self.block(b).slot == NONE && !matches!(self.block(b).persist, PersistState::No | PersistState::Erase)
    }

    /// Return whether a shard copy of an entry has a slot on NVMe.
    fn has_slot(&self, c: u32) -> bool {
        self.copies(c).any(|copy| copy.block().is_none_or(|b| self.block(b).slot != NONE))
    }

    /// Drop an entry, or a descendant of it first.
    pub(crate) fn drop_below(&mut self, c: u32, cause: Cause) {
        let leaf = self.index.next_leaf(c);
        self.drop_leaf(leaf, cause);
    }

    /// Drop an entry with an unreferenced shard copy that is only in the session's tier 0. The entry is not idle if another shard's copy
    /// is in use: a lease of that shard can still be loaded, but lookups do not find its prefix any more. Return false if there is none
    /// near.
    pub(crate) fn drop_entry_in_tier0(&mut self, s: u16, class: u8) -> bool {
        let session = self.tier0(s);
        let Some(c) = session.classes.get(usize::from(class)) else { return false };
        let (mut found, mut count) = ([NONE; CANDIDATES_MAX], 0);
        for f in c.early.iter(&session.frames).take(FRAMES_MAX) {
            let block = self.block(self.geo().block_of(session.frames[f as usize].page));
            let idle = block.refs() == 0 && block.entry != NONE && !self.index.is_pinned(block.entry);
            if idle && !found.contains(&block.entry) {
                found[count] = block.entry;
                count += 1;
            }
            if count == found.len() {
                break;
            }
        }
        self.remove_parents_of_stores(&mut found[..count]);
        let Some(&entry) = found[..count].iter().find(|&&c| c != NONE) else { return false };
        self.counters.cache_drops += 1;
        let cause = self.count_lost(entry).unwrap_or(Cause::MemoryFull);
        self.remove_entry(entry, cause);
        true
    }

    /// Remove an entry and its descendants from the index. Unreferenced blocks are released, and their log records are erased.
    pub(crate) fn remove_entry(&mut self, c: u32, cause: Cause) {
        loop {
            let leaf = if mutants::on(Mutant::ParentDroppedAlone) { c } else { self.index.leaf_of(c) };
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

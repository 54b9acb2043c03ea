//! Index-only entries, which are only on NVMe and have no block. Entries give up their blocks when block ids run short, and get
//! new ones when they are attached.

use crate::api::{BlockId, NONE};
use crate::blocks::BlockState;
use crate::disk::{DiskTier, Why};
use crate::tables::disk::{Logged, Place};
use crate::tables::index::{Residency, ShardCopy};

/// One in this many block ids is kept free if nothing has to be dropped for it.
const SPARE: u32 = 16;

/// Maximum entries that one search takes blocks from, and maximum entries with a slot that it passes over because they cannot give up
/// their block now.
const LOOK_MAX: usize = 64;

/// Entries that give up blocks when one entry needs a block: the next entries of its prefix need theirs too.
const DROPPED_AT_ONCE_MAX: usize = 16;

impl DiskTier {
    /// Return whether all pages of the block are on NVMe and recorded, and no sequence, job or request needs it.
    fn may_drop_block(&self, b: BlockId) -> bool {
        let block = *self.block(b);
        let idle =
            block.state == BlockState::Sealed && block.entry != NONE && block.refs() == 0 && block.in_flight == 0;
        let persisted =
            |at: u32| at != NONE && self.disk.logged(at) == Logged::Recorded && self.disk.place(at) == Place::Block;
        idle && persisted(block.slot)
            && self.pages_of(b).all(|page| self.page(page).on_disk() || self.page(page).out_of_window())
    }

    /// Return whether the block can be dropped and its id is free at once: no tier 0 has to drop it first.
    fn may_drop_block_at_once(&self, b: BlockId) -> bool {
        self.may_drop_block(b) && self.pages_of(b).all(|page| self.page(page).frame == NONE)
    }

    /// Drop the blocks of the least recently used entries that allow it, until `ids` block ids are free or about to be. An id is
    /// free once no tier 0 shows the block. Return false if none was dropped, or no more were near.
    pub(crate) fn drop_idle_blocks(&mut self, ids: u32) -> bool {
        let mut found = [NONE; LOOK_MAX];
        let most = LOOK_MAX.min(self.ids_short(ids) as usize);
        let count = self.find_droppable(&mut found[..most], DiskTier::may_drop_block);
        for &c in &found[..count] {
            if self.ids_short(ids) == 0 {
                break;
            }
            self.drop_blocks_of(c);
        }
        count > 0 && count == most
    }

    /// Collect in `found` the first entries of which a block can be dropped, and return their number. Stops after [`LOOK_MAX`] others.
    fn find_droppable(&mut self, found: &mut [u32], may: fn(&DiskTier, BlockId) -> bool) -> usize {
        let (mut count, mut passed) = (0, 0);
        if !self.disk.exists() || found.is_empty() {
            return 0;
        }
        let head = self.index.head(&[Residency::Both]);
        for c in self.index.in_order(head, &[Residency::Both]) {
            if self.copies(c).filter_map(ShardCopy::block).any(|b| may(self, b)) {
                found[count] = c;
                count += 1;
            } else {
                passed += 1;
            }
            if count == found.len() || passed == LOOK_MAX {
                break;
            }
        }
        count
    }

    fn drop_blocks_of(&mut self, c: u32) {
        loop {
            let found = self.copies(c).filter_map(ShardCopy::block).find(|&b| self.may_drop_block(b));
            let Some(b) = found else { return };
            self.drop_block(c, b);
        }
    }

    fn drop_block(&mut self, c: u32, b: BlockId) {
        let block = *self.block(b);
        let at = block.slot;
        for i in 0..self.geo().windowed.len() {
            let page = self.geo().page(b, self.geo().windowed[i]);
            let out_of_window = self.page(page).out_of_window();
            self.disk.set_windowed(at, i, !out_of_window);
        }
        self.disk.drop_block(at, c, block.shard, block.next_copy.get());
        self.replace_copy(c, ShardCopy::Block(b), ShardCopy::IndexOnly(at));
        self.forget_entry(b);
        self.set_slot(b, NONE);
        self.counters.blocks_dropped += 1;
        self.die(b);
    }

    /// Give a block to a shard copy that is only on NVMe. Return `None` if no id is free.
    pub(crate) fn give_block(&mut self, c: u32, at: u32) -> Option<BlockId> {
        if self.blocks().free_ids() == 0 {
            self.make_room_at_once();
        }
        let shard = self.disk.shard(at);
        let b = self.alloc_block(shard)?;
        let next = self.disk.next_copy(at);
        self.set_sealed(b);
        self.set_slot(b, at);
        self.set_entry(b, c, next);
        self.replace_copy(c, ShardCopy::IndexOnly(at), ShardCopy::Block(b));
        self.disk.give_block(at, b);
        for page in self.pages_of(b) {
            self.set_on_disk(page, true);
        }
        for i in 0..self.geo().windowed.len() {
            if !self.disk.has_windowed(at, i) {
                let page = self.geo().page(b, self.geo().windowed[i]);
                self.leave_window(page);
            }
        }
        self.counters.blocks_given += 1;
        self.persist(b, Why::Attached);
        Some(b)
    }

    /// Free some block ids at once for a lookup, without waiting for a tier 0. If none can be freed at once, start to free one
    /// for the next lookup.
    fn make_room_at_once(&mut self) {
        let mut found = [NONE; DROPPED_AT_ONCE_MAX];
        let count = self.find_droppable(&mut found, DiskTier::may_drop_block_at_once);
        found[..count].iter().for_each(|&c| self.drop_blocks_of(c));
        if count == 0 {
            self.drop_idle_blocks(self.blocks().free_ids() + self.blocks().dying + 1);
        }
    }

    /// Keep some block ids free, as long as nothing has to be dropped for it.
    pub(crate) fn trim_blocks(&mut self) {
        self.drop_idle_blocks(self.blocks().max / SPARE);
    }
}

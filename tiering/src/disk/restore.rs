//! Entries that earlier runs stored on NVMe. They are cached as index-only entries, and get a block when they are attached.

use crate::api::{Cause, DiskSlot, NONE};
use crate::disk::DiskTier;
use crate::error::Error;
use crate::tables::disk::{Logged, Place};
use crate::tables::index::ShardCopy;

impl DiskTier {
    /// Call `each` for every block with a valid record on NVMe: its location, its shard, and the words of its record as in
    /// [`Action::Record`](crate::api::Action::Record). For a space that ends; takes time in proportion to the index.
    pub(crate) fn each_recorded(&self, mut each: impl FnMut(DiskSlot, u16, &[u32])) {
        let mut words = Vec::new();
        for c in self.index.live() {
            for copy in self.copies(c) {
                let (at, shard) = match copy {
                    ShardCopy::Block(b) if self.is_recorded(b) => (self.block(b).slot, self.block(b).shard),
                    ShardCopy::IndexOnly(at)
                        if self.disk.logged(at) == Logged::Recorded && self.disk.place(at) == Place::IndexOnly =>
                    {
                        (at, self.disk.shard(at))
                    }
                    _ => continue,
                };
                words.clear();
                words.extend(self.index.record_words(c));
                let there = |plane: u16| match copy {
                    ShardCopy::Block(b) => !self.page(self.geo().page(b, plane)).out_of_window(),
                    _ => {
                        let window = self.geo().windowed.iter().position(|&windowed| windowed == plane);
                        window.is_none_or(|i| self.disk.has_windowed(at, i))
                    }
                };
                let planes = self.geo().planes.len() as u16;
                words.extend((0..planes).step_by(32).map(|first| {
                    (first..planes.min(first + 32))
                        .fold(0, |word, plane| word | u32::from(there(plane)) << (plane - first))
                }));
                each(self.disk.location(at), shard, &words);
            }
        }
    }

    /// Return the highest generation that slots of an NVMe slab have had.
    pub(crate) fn generation_of(&self, slab: u32) -> u32 {
        self.disk.generation_of(slab)
    }

    pub(crate) fn restored(
        &mut self,
        at: DiskSlot,
        shard: u16,
        hash: u128,
        parent: u128,
        planes: &[u32],
    ) -> Result<(), Error> {
        let slot = self.disk.restorable(at)?;
        self.disk.restore(slot, at.generation, shard);
        match self.entry_for(shard, hash, parent, planes) {
            Ok(c) => {
                for i in 0..self.geo().windowed.len() {
                    let plane = usize::from(self.geo().windowed[i]);
                    self.disk.set_windowed(slot, i, planes[plane / 32] >> (plane % 32) & 1 == 1);
                }
                let next = self.index.add_copy(c, ShardCopy::IndexOnly(slot), 1);
                self.disk.drop_block(slot, c, shard, next);
                self.counters.restored += 1;
                self.announce_gap();
            }
            Err(cause) => {
                self.note_absent(hash, cause);
                self.counters.restore_refused += 1;
                self.disk.release(slot);
            }
        }
        Ok(())
    }

    /// Return the entry that a restored block belongs to. Return why if it fits no entry or there is no room.
    fn entry_for(&mut self, shard: u16, hash: u128, parent: u128, planes: &[u32]) -> Result<u32, Cause> {
        if shard >= self.cfg().shards || hash == 0 || !self.are_present(planes) {
            return Err(Cause::RestoreRefused);
        }
        let above = match parent {
            0 => NONE,
            // The parent must have a copy of the same shard; otherwise the block cannot have been stored.
            _ => {
                let above = self.index.find(parent).filter(|&c| self.copy_of(c, shard).is_some());
                above.ok_or(Cause::RestoreNoParent)?
            }
        };
        let entry = match self.index.find(hash) {
            Some(c) => {
                let fits = self.index.parent(c) == above && self.copy_of(c, shard).is_none();
                fits.then_some(c)
            }
            None => self.index.insert(hash, above),
        };
        entry.ok_or(Cause::RestoreRefused)
    }

    /// Return whether the set of planes is valid for a block: all planes, except windowed ones that may be out of window.
    fn are_present(&self, planes: &[u32]) -> bool {
        let count = self.geo().planes.len();
        let bit = |plane: usize| planes[plane / 32] >> (plane % 32) & 1 == 1;
        planes.len() == count.div_ceil(32)
            && (0..count).all(|plane| bit(plane) || self.geo().windowed.contains(&(plane as u16)))
            && (0..count).any(bit)
            && (count..planes.len() * 32).all(|plane| !bit(plane))
    }
}

//! Checks of cache entries, their shard copies, their persistence state, and their index log records.

use crate::api::NONE;
use crate::blocks::PersistState;
use crate::error::ensure;
use crate::requests::Requests;
use crate::sessions::{Life, Phase, Publish, Work};
use crate::tables::disk::{Logged, Place};
use crate::tables::index::{CopyCounts, ShardCopy};
use std::collections::BTreeSet;

impl Requests {
    /// Check that each entry has the shard copies that it counts.
    pub(crate) fn check_entries(&self) -> Result<(), String> {
        self.index.check()?;
        self.check_parents_of_stores()?;
        let (mut index_only, mut published) = (0, 0usize);
        for c in self.index.live() {
            let (mut all, mut with_block, mut with_slot, mut active) = (0, 0, 0, 0);
            let mut shards = BTreeSet::new();
            for copy in self.copies(c) {
                all += 1;
                with_slot += self.slots(copy);
                let shard = match copy {
                    ShardCopy::End => NONE as u16,
                    ShardCopy::Block(b) => {
                        ensure!(self.block(b).entry == c, "block {b} does not belong to entry {c}");
                        with_block += 1;
                        active += u16::from(self.block(b).refs() > 0);
                        self.block(b).shard
                    }
                    ShardCopy::IndexOnly(at) => {
                        let place = self.disk.place(at);
                        ensure!(place == Place::IndexOnly, "slot {at} of entry {c} is {place:?}");
                        ensure!(self.disk.owner(at) == c, "slot {at} is not owned by entry {c}");
                        index_only += 1;
                        self.disk.shard(at)
                    }
                };
                ensure!(shards.insert(shard), "entry {c} has two copies of shard {shard}");
                self.check_recorded(c, copy, shard)?;
            }
            published += usize::from(with_block);
            let kept = self.index.copies(c);
            let counted = CopyCounts { all, with_block, with_slot, active };
            ensure!(kept == counted, "entry {c}: {kept:?}, counted {counted:?}");
        }
        let kept = self.disk.counts()[2];
        ensure!(index_only == kept, "index-only slots: {kept}, counted {index_only}");
        let of_entries = self.blocks().recs.iter().filter(|b| b.entry != NONE).count();
        ensure!(of_entries == published, "{of_entries} blocks are published, {published} are shard copies");
        Ok(())
    }

    /// Check that the pages named by a valid record exist, and that the parent's record is valid too.
    fn check_recorded(&self, c: u32, copy: ShardCopy, shard: u16) -> Result<(), String> {
        let at = match copy {
            ShardCopy::End => NONE,
            ShardCopy::Block(b) => self.block(b).slot,
            ShardCopy::IndexOnly(at) => at,
        };
        if at == NONE || self.disk.place(at) == Place::Gone {
            return Ok(());
        }
        let logged = self.disk.logged(at);
        ensure!(copy.block().is_some() || matches!(logged, Logged::Recorded | Logged::Stale), "{copy:?} is {logged:?}");
        if logged != Logged::Recorded {
            return Ok(());
        }
        if let ShardCopy::Block(b) = copy {
            ensure!(self.block(b).persist == PersistState::No, "block {b} is recorded and {:?}", self.block(b).persist);
            for page in self.pages_of(b) {
                let p = self.page(page);
                ensure!(p.on_disk() || p.out_of_window(), "block {b} is recorded without page {page}");
            }
        }
        let parent = self.index.parent(c);
        let above = if parent == NONE { None } else { Some(self.copy_of(parent, shard)) };
        let counts = match above {
            None => true,
            Some(Some(ShardCopy::Block(p))) => self.is_recorded(p) && !self.is_slot_gone(p),
            Some(Some(ShardCopy::IndexOnly(p))) => self.disk.logged(p) == Logged::Recorded,
            Some(_) => false,
        };
        ensure!(counts, "entry {c} is recorded, its parent is not");
        Ok(())
    }

    /// Check that blocks to be persisted are in the right list, so that none is forgotten.
    pub(crate) fn check_persisting(&self) -> Result<(), String> {
        let listed = self.blocks().all_to_write().filter(|&b| self.block(b).persist == PersistState::Write).count();
        let are = self.blocks().recs.iter().filter(|b| b.persist == PersistState::Write).count();
        let count = self.blocks().to_write_count() as usize;
        ensure!(listed == are && listed == count, "blocks to write: {listed} listed, count {count}, counted {are}");
        let lists = [(&self.blocks().to_record, PersistState::Record), (&self.blocks().to_erase, PersistState::Erase)];
        for (list, state) in lists {
            let listed = list.iter(&self.blocks().recs).filter(|&b| self.block(b).persist == state).count();
            let are = self.blocks().recs.iter().filter(|b| b.persist == state).count();
            ensure!(
                listed == are && listed == list.len as usize,
                "blocks in state {state:?}: {listed} listed, counted {are}"
            );
        }
        for (b, block) in (0u32..).zip(&self.blocks().recs) {
            match block.persist {
                PersistState::No => {}
                PersistState::Erase => {
                    let stale =
                        block.slot != NONE && (self.disk.logged(block.slot) == Logged::Stale || self.is_slot_gone(b));
                    ensure!(stale && block.entry == NONE, "block {b} has nothing to erase: {block:?}");
                }
                _ => ensure!(
                    block.entry != NONE && block.live(),
                    "block {b} is to be persisted, but is not cached: {block:?}"
                ),
            }
            if block.persist == PersistState::Waits {
                let stage = self.stage_of(b);
                ensure!(stage == PersistState::Waits, "block {b} is in state Waits, should be {stage:?}");
            }
            ensure!(!block.waited || block.entry != NONE, "block {b} has a waiting publish and is not published");
            let on_its_way = !matches!(block.persist, PersistState::No | PersistState::Erase);
            ensure!(
                !block.committed || on_its_way,
                "write budget is reserved for block {b}, which is not to be written"
            );
        }
        let committed = self.blocks().recs.iter().filter(|b| b.committed).count();
        ensure!(
            committed == self.blocks().committed as usize,
            "blocks with reserved write budget: {}, counted {committed}",
            self.blocks().committed
        );
        for s in self.sessions().iter().filter(|s| s.life == Life::Live) {
            let waits = s.ops.recs.iter().filter(|o| o.phase == Phase::Persisting);
            for op in waits {
                let Work::Publish(Publish { entry, flush, .. }) = op.work else {
                    return Err(format!("{op:?} waits for a record"));
                };
                let copy = if flush > 0 { None } else { self.copy_of(entry, s.shard).and_then(ShardCopy::block) };
                let told = flush > 0 || copy.is_some_and(|b| self.block(b).waited);
                ensure!(told, "a publish waits for entry {entry}, which has no waiting block");
                let scheduled = self.disk.has_flush();
                ensure!(flush == 0 || scheduled, "a publish waits for flush {flush}, which is not scheduled");
            }
        }
        Ok(())
    }
}

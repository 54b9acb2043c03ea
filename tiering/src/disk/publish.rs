//! A block becomes findable, and its persistence starts.

use crate::actions::LIST_MAX;
use crate::api::{BlockId, Cause, Level, NONE, Status};
use crate::blocks::BlockState;
use crate::disk::{DiskTier, Why};
use crate::sessions::{Phase, Publish};
use crate::tables::disk::Logged;
use crate::tables::index::ShardCopy;

/// Maximum hashes of one request: a list of 32-bit words holds this number of 128-bit hashes.
pub(crate) const HASHES_MAX: usize = LIST_MAX / 4;

impl DiskTier {
    /// Make a request wait until cache entry `c`, the last of the `count` that it has made findable, is persisted as requested.
    pub(crate) fn wait_until_persisted(&mut self, s: u16, op: u32, c: u32, count: u32, level: Level) {
        match self.block_to_persist(s, c, level) {
            Ok(block) => {
                let publish = Publish { entry: c, count, level, flush: 0 };
                self.set_work(s, op, publish);
                self.wait_for_persist(s, op, publish, block);
            }
            Err(status) => self.finish_with(s, op, status, Level::Published as u64),
        }
    }

    pub(crate) fn wait_for_persist(&mut self, s: u16, op: u32, publish: Publish, block: Option<BlockId>) {
        self.enter(s, op, Phase::Persisting);
        match block {
            Some(b) => _ = self.set_waited(b, true),
            None => self.publish_stored(s, op, publish),
        }
    }

    /// Return the block of cache entry `c` that must be recorded first; `None` if it is recorded.
    pub(crate) fn block_to_persist(&mut self, s: u16, c: u32, level: Level) -> Result<Option<BlockId>, Status> {
        let block = match self.copy_of(c, self.session(s).shard) {
            Some(ShardCopy::Block(b)) if !self.is_recorded(b) => b,
            Some(ShardCopy::IndexOnly(at)) if self.disk.logged(at) != Logged::Recorded => {
                self.give_block(c, at).ok_or(Status::NotAdmitted)?
            }
            Some(ShardCopy::Block(_) | ShardCopy::IndexOnly(_)) => return Ok(None),
            Some(ShardCopy::End) | None => return Err(Status::NotAdmitted),
        };
        if !self.persist(block, Why::Published(level)) {
            let over_budget = self.block(block).over_budget;
            return Err(if over_budget { Status::OverBudget } else { Status::NotAdmitted });
        }
        self.disk.failing().map_or(Ok(Some(block)), Err)
    }

    /// Make one block findable, or find that it is cached already with at least the same pages. Return its cache entry.
    pub(crate) fn publish_block(
        &mut self,
        (b, depth): (BlockId, u32),
        hash: u128,
        above: u32,
        level: Level,
    ) -> Result<u32, Status> {
        let block = *self.block(b);
        if block.state != BlockState::Sealed || self.pages_of(b).any(|p| self.page(p).lost()) {
            return Err(Status::NotAdmitted);
        }
        let found = self.index.find(hash);
        if block.entry != NONE {
            if found != Some(block.entry) {
                return Err(Status::State);
            }
            self.persist(b, Why::Published(level));
            return Ok(block.entry);
        }
        // The parent must have a copy of the same shard: then a complete entry has only complete ancestors, and a prefix can be
        // searched for.
        if above != NONE && self.copy_of(above, block.shard).is_none() {
            return Err(Status::NotAdmitted);
        }
        let c = match found {
            // A chained hash covers its ancestors: the same hash under another parent is not the same chain.
            Some(c) if self.index.parent(c) != above => return Err(Status::Invalid),
            Some(c) => c,
            None => {
                if !self.index.has_room() {
                    self.make_room(above)?;
                }
                self.index.insert(hash, above).ok_or(Status::NotAdmitted)?
            }
        };
        self.touch_entry(hash, block.shard);
        self.index.begin_use(c);
        self.index.touch(c);
        match self.copy_of(c, block.shard) {
            Some(copy) => match self.superseded_by(copy, b) {
                Some(old) => self.replace_with(c, old, b, depth),
                None => {
                    if let ShardCopy::Block(other) = copy {
                        self.persist(other, Why::Published(level));
                    }
                    return Ok(c);
                }
            },
            None => self.add_block(c, b, depth),
        }
        self.counters.published += 1;
        // A published block must outlive its engine: write it back soon.
        for page in self.pages_of(b) {
            self.settle_page(page);
        }
        self.persist(b, Why::Published(level));
        Ok(c)
    }

    /// Publish a block that was cached already, so the caller has no block for it.
    pub(crate) fn publish_cached(&mut self, shard: u16, hash: u128, above: u32, level: Level) -> Result<u32, Status> {
        // It may have been dropped while other blocks of the request were copied.
        let c = self.index.find(hash).ok_or(Status::NotAdmitted)?;
        if self.index.parent(c) != above {
            return Err(Status::Invalid);
        }
        let copy = self.copy_of(c, shard).ok_or(Status::NotAdmitted)?;
        self.touch_entry(hash, shard);
        self.index.touch(c);
        if let ShardCopy::Block(b) = copy {
            self.persist(b, Why::Published(level));
        }
        Ok(c)
    }

    /// Make the block its shard's copy of cache entry `c`.
    fn add_block(&mut self, c: u32, b: BlockId, depth: u32) {
        let slots = self.slots(ShardCopy::Block(b));
        let next = self.index.add_copy(c, ShardCopy::Block(b), slots);
        self.set_entry(b, c, next);
        self.set_depth(b, depth);
        if self.block(b).refs() > 0 {
            self.index.activate(c);
        }
        self.announce_stored(c);
    }

    /// The index is full: evict the first entry in order to make room for a child of `above`.
    fn make_room(&mut self, above: u32) -> Result<(), Status> {
        if above != NONE {
            self.index.touch(above);
        }
        match self.index.first_leaf() {
            Some(leaf) if leaf != above => self.drop_leaf(leaf, Cause::IndexFull),
            _ => return Err(Status::NotAdmitted),
        }
        Ok(())
    }
}

//! Publish: makes sealed blocks findable by hash, and persists them as requested.

use crate::actions::LIST_MAX;
use crate::api::{BlockId, Cause, Level, NONE, SeqId, Status};
use crate::disk::Logged;
use crate::pages::{BlockState, Link, PersistState, ShardCopy};
use crate::requests::{Op, Phase, Work};
use crate::sessions::{Life, Session};
use crate::space::{Core, Who, Why, why_not_stored};

/// Maximum hashes of one request: a list of 32-bit words holds this number of 128-bit hashes.
pub(crate) const HASHES_MAX: usize = LIST_MAX / 4;

/// Arguments of a publish.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Publish<'a> {
    pub seq: SeqId,
    pub first: u32,
    pub parent: u128,
    pub hashes: &'a [u128],
    pub level: Level,
}

impl Core {
    /// Execute a publish. The level reached is the value of the completion.
    pub(crate) fn publish(&mut self, who: Who, publish: Publish<'_>, due: u64) {
        match self.try_publish(who.session, publish) {
            Err(status) => self.complete(who, status, Level::Published as u64),
            Ok(NONE) => self.complete(who, Status::Ok, publish.level as u64),
            Ok(_) if publish.level == Level::Published => self.complete(who, Status::Ok, Level::Published as u64),
            Ok(c) => self.publish_and_persist(who, c, publish, due),
        }
    }

    /// Persist the range that ends with cache entry `c` as requested. When `c` is stored, so are all its ancestors.
    fn publish_and_persist(&mut self, who: Who, c: u32, publish: Publish<'_>, due: u64) {
        let block = match self.block_to_persist(who.session, c, publish.level) {
            Ok(block) => block,
            Err(status) => return self.complete(who, status, Level::Published as u64),
        };
        let count = publish.hashes.len() as u32;
        let op = Op { work: Work::Publish, at: c, count, tokens: publish.level as u64, ..Op::default() };
        if let Some(op) = self.new_op(who, op, due) {
            self.wait_for_persist(who.session, op, block);
        }
    }

    /// Make the request wait until cache entry `c`, which it has made findable, is persisted as requested.
    pub(crate) fn wait_until_persisted(&mut self, s: u16, op: u32, c: u32, level: Level) {
        match self.block_to_persist(s, c, level) {
            Ok(block) => {
                let rec = &mut self.sessions[usize::from(s)].ops[op];
                (rec.work, rec.at, rec.tokens, rec.use_pos) = (Work::Publish, c, level as u64, 0);
                self.wait_for_persist(s, op, block);
            }
            Err(status) => self.finish_with(s, op, status, Level::Published as u64),
        }
    }

    fn wait_for_persist(&mut self, s: u16, op: u32, block: Option<BlockId>) {
        self.sessions[usize::from(s)].ops.enter(op, Phase::Persisting);
        match block {
            Some(b) => self.blocks[b].waited = true,
            None => self.publish_stored(s, op),
        }
    }

    /// Return the block of cache entry `c` that must be recorded first; `None` if it is recorded.
    fn block_to_persist(&mut self, s: u16, c: u32, level: Level) -> Result<Option<BlockId>, Status> {
        let block = match self.copy_of(c, self.sessions[usize::from(s)].shard) {
            Some(ShardCopy::Block(b)) if !self.is_recorded(b) => b,
            Some(ShardCopy::IndexOnly(at)) if self.disk.logged(at) != Logged::Recorded => {
                self.give_block(c, at).ok_or(Status::NotAdmitted)?
            }
            Some(ShardCopy::Block(_) | ShardCopy::IndexOnly(_)) => return Ok(None),
            Some(ShardCopy::End) | None => return Err(Status::NotAdmitted),
        };
        if !self.persist(block, Why::Published(level)) {
            let over_budget = self.blocks[block].over_budget;
            return Err(if over_budget { Status::OverBudget } else { Status::NotAdmitted });
        }
        self.disk.failing().map_or(Ok(Some(block)), Err)
    }

    /// Publish the blocks. Return the cache entry of the last one; `NONE` if there are no blocks.
    fn try_publish(&mut self, s: u16, publish: Publish<'_>) -> Result<u32, Status> {
        let Publish { seq, first, parent, hashes, level } = publish;
        let q = *self.live_seq(s, seq).ok_or(Status::NotFound)?;
        if hashes.len() > HASHES_MAX {
            return Err(Status::Limit);
        }
        let end = u64::from(first) + hashes.len() as u64;
        if end > u64::from(q.blocks) {
            return Err(Status::Range);
        }
        if end > q.tokens / self.geo.page_tokens || q.busy != 0 {
            return Err(Status::State);
        }
        if hashes.contains(&0) {
            return Err(Status::Invalid);
        }
        if !self.is_next(s, first, parent) {
            return Err(Status::Invalid);
        }
        let mut above = match parent {
            0 if first == 0 => NONE,
            0 => return Err(Status::Invalid),
            // Its ancestors may have been dropped: without them its descendants could not be found.
            hash => match self.index.find(hash) {
                Some(above) => above,
                None => {
                    hashes.iter().for_each(|&hash| self.index.note_absent(hash, Cause::StoreNoParent, self.now));
                    return Err(Status::NotAdmitted);
                }
            },
        };
        if above != NONE {
            self.index.touch(above);
        }
        self.index.warm(hashes);
        for (i, &hash) in hashes.iter().enumerate() {
            let index = first + i as u32;
            let b = self.seq_block(s, seq, index);
            above = self.publish_block((b, index), hash, above, level).inspect_err(|&status| {
                let cause = why_not_stored(status);
                hashes[i..].iter().for_each(|&hash| self.index.note_absent(hash, cause, self.now));
            })?;
        }
        self.wake(s);
        Ok(if hashes.is_empty() { NONE } else { above })
    }

    /// Make one block findable, or find that it is cached already with at least the same pages. Return its cache entry.
    pub(crate) fn publish_block(
        &mut self,
        (b, depth): (BlockId, u32),
        hash: u128,
        above: u32,
        level: Level,
    ) -> Result<u32, Status> {
        let block = self.blocks[b];
        if block.state != BlockState::Sealed || self.pages_of(b).any(|p| self.pages[p as usize].lost()) {
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
        let next = self.index.add_copy(c, ShardCopy::Block(b));
        let block = &mut self.blocks[b];
        (block.entry, block.depth, block.next_copy) = (c, depth, Link::to(next));
        if block.refs() > 0 {
            self.index.activate(c);
        }
        self.announce_stored(c);
    }

    /// The index is full: evict the first entry in order to make room for a child of `above`.
    fn make_room(&mut self, above: u32) -> Result<(), Status> {
        if above != NONE {
            self.index.touch(above);
        }
        match self.first_leaf() {
            Some(leaf) if leaf != above => self.drop_leaf(leaf, Cause::IndexFull),
            _ => return Err(Status::NotAdmitted),
        }
        Ok(())
    }

    /// Return whether a publish waits for a record.
    pub(crate) fn publishes_wait(&self) -> bool {
        let waits = |s: &Session| s.ops.persisting.iter(&s.ops.recs).any(|op| s.ops[op].use_pos == 0);
        self.sessions.iter().any(waits)
    }

    /// Continue the publishes that wait for the record of a block, which is now valid.
    pub(crate) fn publishes_stored(&mut self, c: u32, shard: u16) {
        self.each_publish(|core, s, op| {
            let rec = &core.sessions[usize::from(s)].ops[op];
            if rec.at == c && rec.use_pos == 0 && core.sessions[usize::from(s)].shard == shard {
                core.publish_stored(s, op);
            }
        });
    }

    fn publish_stored(&mut self, s: u16, op: u32) {
        let rec = &mut self.sessions[usize::from(s)].ops[op];
        if rec.tokens < Level::Durable as u64 {
            return self.finish_with(s, op, Status::Ok, Level::Stored as u64);
        }
        // A flush in progress may have started too early.
        (rec.at, rec.use_pos) = (NONE, self.disk.want_flush());
    }

    /// Complete the publishes that wait for flush `done`, which ended, or for an earlier one.
    pub(crate) fn publishes_flushed(&mut self, done: u64, status: Status) {
        self.each_publish(|core, s, op| {
            let rec = core.sessions[usize::from(s)].ops[op];
            match status {
                _ if rec.use_pos == 0 || rec.use_pos > done => {}
                Status::Ok => {
                    core.counters.durable += u64::from(rec.count);
                    core.finish_with(s, op, Status::Ok, Level::Durable as u64);
                }
                _ => core.finish_with(s, op, Status::Io, Level::Stored as u64),
            }
        });
    }

    /// End the publishes that wait for the record of a cache entry that will not be stored.
    pub(crate) fn end_publishes(&mut self, c: u32, shard: u16, status: Status) {
        self.each_publish(|core, s, op| {
            let rec = &core.sessions[usize::from(s)].ops[op];
            if rec.at == c && core.sessions[usize::from(s)].shard == shard {
                core.finish_with(s, op, status, Level::Published as u64);
            }
        });
    }

    /// End the publishes that wait for a record: nothing can be stored for a long time.
    pub(crate) fn fail_publishes(&mut self, status: Status) {
        self.each_publish(|core, s, op| {
            if core.sessions[usize::from(s)].ops[op].use_pos == 0 {
                core.finish_with(s, op, status, Level::Published as u64);
            }
        });
    }

    /// End the publishes with a block or ancestor that needs a slot while NVMe has none free. The scan of pending blocks covers
    /// only a part of them at a time, and its next part may run much later.
    pub(crate) fn end_publishes_without_slots(&mut self) {
        self.each_publish(|core, s, op| {
            let (rec, shard) = (core.sessions[usize::from(s)].ops[op], core.sessions[usize::from(s)].shard);
            let end = if rec.use_pos == 0 { rec.at } else { NONE };
            let needs = |b| core.blocks[b].slot == NONE && core.blocks[b].persist == PersistState::Write;
            if core.index.prefix(end).filter_map(|c| core.copy_of(c, shard)?.block()).any(needs) {
                core.finish_with(s, op, Status::NoSpace, Level::Published as u64);
            }
        });
    }

    /// Skip a block that gets no slot until others are freed. Its descendants may have slots and wait for it.
    pub(crate) fn no_slot_for(&mut self, b: BlockId) {
        self.blocks.pass_over(b);
        self.no_room_for(b);
    }

    /// End the waits for a block and its descendants: no host frame or slot on the way to NVMe is free until running sequences
    /// release theirs. The blocks are written later.
    pub(crate) fn no_room_for(&mut self, b: BlockId) {
        let (top, shard) = (self.blocks[b].entry, self.blocks[b].shard);
        let mut next = Some(top).filter(|&c| c != NONE);
        while let Some(c) = next {
            if let Some(ShardCopy::Block(copy)) = self.copy_of(c, shard)
                && std::mem::take(&mut self.blocks[copy].waited)
            {
                self.end_publishes(c, shard, Status::NoSpace);
            }
            next = self.index.next_below(c, top);
        }
    }

    fn each_publish(&mut self, mut look: impl FnMut(&mut Core, u16, u32)) {
        for s in 0..self.sessions.len() as u16 {
            if self.sessions[usize::from(s)].life != Life::Live {
                continue;
            }
            let mut op = self.sessions[usize::from(s)].ops.persisting.head;
            while op != NONE {
                let next = self.sessions[usize::from(s)].ops[op].links.next;
                look(self, s, op);
                op = next;
            }
        }
    }
}

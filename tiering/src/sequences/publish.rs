//! Publish: sealed blocks become findable by hash, and are kept as well as asked.

use crate::actions::LIST_MAX;
use crate::api::{BlockId, Level, NONE, SeqId, Status};
use crate::pages::{BlockState, Keep, Link, Logged, Part};
use crate::requests::{Op, Phase, Work};
use crate::sessions::{Life, Session};
use crate::space::{Core, Who, Why};

/// Hashes of one request: a list of 32-bit words holds so many of 128 bits.
pub(crate) const HASHES_MAX: usize = LIST_MAX / 4;

/// What a publish asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Publish<'a> {
    pub seq: SeqId,
    pub first: u32,
    pub parent: u128,
    pub hashes: &'a [u128],
    pub level: Level,
}

impl Core {
    /// The level that was reached is the completion's value.
    pub(crate) fn publish(&mut self, who: Who, publish: Publish<'_>, due: u64) {
        match self.try_publish(who.session, publish) {
            Err(status) => self.complete(who, status, Level::Published as u64),
            Ok(NONE) => self.complete(who, Status::Ok, publish.level as u64),
            Ok(_) if publish.level == Level::Published => self.complete(who, Status::Ok, Level::Published as u64),
            Ok(c) => self.publish_kept(who, c, publish, due),
        }
    }

    /// Has the range that ends with content `c` kept as asked: when that is stored, so is all that it stands on.
    fn publish_kept(&mut self, who: Who, c: u32, publish: Publish<'_>, due: u64) {
        let block = match self.block_to_keep(who.session, c, publish.level) {
            Ok(block) => block,
            Err(status) => return self.complete(who, status, Level::Published as u64),
        };
        let count = publish.hashes.len() as u32;
        let op = Op { work: Work::Publish, at: c, count, tokens: publish.level as u64, ..Op::default() };
        if let Some(op) = self.new_op(who, op, due) {
            self.wait_for_keeping(who.session, op, block);
        }
    }

    /// The request waits until content `c`, which it has made findable, is kept as asked.
    pub(crate) fn wait_until_kept(&mut self, s: u16, op: u32, c: u32, level: Level) {
        match self.block_to_keep(s, c, level) {
            Ok(block) => {
                let rec = &mut self.sessions[usize::from(s)].ops[op];
                (rec.work, rec.at, rec.tokens, rec.use_pos) = (Work::Publish, c, level as u64, 0);
                self.wait_for_keeping(s, op, block);
            }
            Err(status) => self.finish_with(s, op, status, Level::Published as u64),
        }
    }

    fn wait_for_keeping(&mut self, s: u16, op: u32, block: Option<BlockId>) {
        self.sessions[usize::from(s)].ops.enter(op, Phase::Keeping);
        match block {
            Some(b) => self.blocks[b].waited = true,
            None => self.publish_stored(s, op),
        }
    }

    /// The block of content `c` whose record is to be waited for; none if it is recorded.
    fn block_to_keep(&mut self, s: u16, c: u32, level: Level) -> Result<Option<BlockId>, Status> {
        let block = match self.part_of(c, self.sessions[usize::from(s)].shard) {
            Some(Part::Hot(b)) if !self.is_recorded(b) => b,
            Some(Part::Cold(at)) if self.disk.logged(at) != Logged::Recorded => {
                self.heat(c, at).ok_or(Status::NotAdmitted)?
            }
            Some(Part::Hot(_) | Part::Cold(_)) => return Ok(None),
            Some(Part::End) | None => return Err(Status::NotAdmitted),
        };
        if !self.keep(block, Why::Published(level)) {
            return Err(Status::NotAdmitted);
        }
        self.disk_failing().map_or(Ok(Some(block)), Err)
    }

    /// The content of the last block; none if there are no blocks.
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
        let mut above = match parent {
            0 if first == 0 => NONE,
            0 => return Err(Status::Invalid),
            // Its ancestors may have been dropped: what stands on them could not be found.
            hash => self.index.find(hash).ok_or(Status::NotAdmitted)?,
        };
        if above != NONE {
            self.index.touch(above);
        }
        self.index.warm(hashes);
        for (i, &hash) in hashes.iter().enumerate() {
            let index = first + i as u32;
            let b = self.seq_block(s, seq, index);
            above = self.publish_block((b, index), hash, above, level)?;
        }
        self.wake(s);
        Ok(if hashes.is_empty() { NONE } else { above })
    }

    /// Makes one block findable, or finds that its content is cached already, with no fewer pages. Returns the content.
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
        if block.content != NONE {
            if found != Some(block.content) {
                return Err(Status::State);
            }
            self.keep(b, Why::Published(level));
            return Ok(block.content);
        }
        // Its own shard's part of what it stands on, too: what is whole stands on what is whole, so that a prefix can be probed for.
        if above != NONE && self.part_of(above, block.shard).is_none() {
            return Err(Status::NotAdmitted);
        }
        // Who maps a block reads all of it.
        let cached = found.is_some_and(|c| self.part_of(c, block.shard).is_some());
        if !cached && self.has_holes(b) {
            return Err(Status::NotAdmitted);
        }
        let c = match found {
            // A chained hash names its ancestors: the same hash under another parent is not the same chain.
            Some(c) if self.index.recs[c as usize].parent != above => return Err(Status::Invalid),
            Some(c) => c,
            None => {
                if !self.index.has_room() {
                    self.make_room(above)?;
                }
                self.index.insert(hash, above).ok_or(Status::NotAdmitted)?
            }
        };
        self.touch_content(hash, block.shard);
        self.index.begin_use(c);
        self.index.touch(c);
        match self.part_of(c, block.shard) {
            Some(part) => match self.gives_way(part, b) {
                Some(old) => self.replace_with(c, old, b, depth),
                None => {
                    if let Part::Hot(other) = part {
                        self.keep(other, Why::Published(level));
                    }
                    return Ok(c);
                }
            },
            None => self.add_block(c, b, depth),
        }
        self.counters.published += 1;
        // What is published shall outlive its engine: it is written down soon.
        for page in self.pages_of(b) {
            self.settle_page(page);
        }
        self.keep(b, Why::Published(level));
        Ok(c)
    }

    /// The same for a content that the caller has no block of, since it was cached.
    pub(crate) fn publish_cached(&mut self, shard: u16, hash: u128, above: u32, level: Level) -> Result<u32, Status> {
        // It may have been dropped while what stands beside it was copied.
        let c = self.index.find(hash).ok_or(Status::NotAdmitted)?;
        if self.index.recs[c as usize].parent != above {
            return Err(Status::Invalid);
        }
        let part = self.part_of(c, shard).ok_or(Status::NotAdmitted)?;
        self.touch_content(hash, shard);
        self.index.touch(c);
        if let Part::Hot(b) = part {
            self.keep(b, Why::Published(level));
        }
        Ok(c)
    }

    /// The block becomes its shard's part of content `c`.
    fn add_block(&mut self, c: u32, b: BlockId, depth: u32) {
        (self.blocks[b].content, self.blocks[b].depth) = (c, depth);
        self.blocks[b].next_part = Link::to(self.index.recs[c as usize].head());
        self.index.add_part(c, Part::Hot(b));
        if self.blocks[b].refs() > 0 {
            self.index.activate(c);
        }
    }

    /// The index is full: the content that goes first makes room for one that stands on `above`.
    fn make_room(&mut self, above: u32) -> Result<(), Status> {
        if above != NONE {
            self.index.touch(above);
        }
        match self.first_leaf() {
            Some(leaf) if leaf != above => self.drop_leaf(leaf),
            _ => return Err(Status::NotAdmitted),
        }
        Ok(())
    }

    /// Whether a publish waits for something to be stored.
    pub(crate) fn publishes_wait(&self) -> bool {
        let waits = |s: &Session| s.ops.keeping.iter(&s.ops.recs).any(|op| s.ops[op].use_pos == 0);
        self.sessions.iter().any(waits)
    }

    /// The record of a block counts: publishes that wait for its content go on.
    pub(crate) fn publishes_stored(&mut self, c: u32, shard: u16) {
        self.each_publish(|core, s, op| {
            let rec = &core.sessions[usize::from(s)].ops[op];
            if rec.at == c && rec.use_pos == 0 && core.sessions[usize::from(s)].shard == shard {
                core.publish_stored(s, op);
            }
        });
    }

    fn publish_stored(&mut self, s: u16, op: u32) {
        let next = self.log.flushes + 1;
        let rec = &mut self.sessions[usize::from(s)].ops[op];
        if rec.tokens < Level::Durable as u64 {
            return self.finish_with(s, op, Status::Ok, Level::Stored as u64);
        }
        // A flush that is under way may have begun too early.
        (rec.at, rec.use_pos) = (NONE, next);
        self.log.flush_wanted = true;
        self.wake_disk();
    }

    /// The flush that began last ended: who waited for it, or for one before, is told.
    pub(crate) fn publishes_flushed(&mut self, status: Status) {
        let done = self.log.flushes;
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

    /// A content will not be stored: publishes that wait for that end.
    pub(crate) fn end_publishes(&mut self, c: u32, shard: u16, status: Status) {
        self.each_publish(|core, s, op| {
            let rec = &core.sessions[usize::from(s)].ops[op];
            if rec.at == c && core.sessions[usize::from(s)].shard == shard {
                core.finish_with(s, op, status, Level::Published as u64);
            }
        });
    }

    /// Nothing will be stored for long: publishes that wait for that end.
    pub(crate) fn fail_publishes(&mut self, status: Status) {
        self.each_publish(|core, s, op| {
            if core.sessions[usize::from(s)].ops[op].use_pos == 0 {
                core.finish_with(s, op, status, Level::Published as u64);
            }
        });
    }

    /// End the publishes whose block or an ancestor needs a slot while NVMe has none free. The scan of pending blocks covers only a part of
    /// them at a time, and its next part may run much later.
    pub(crate) fn end_publishes_without_slots(&mut self) {
        self.each_publish(|core, s, op| {
            let (rec, shard) = (core.sessions[usize::from(s)].ops[op], core.sessions[usize::from(s)].shard);
            let mut c = if rec.use_pos == 0 { rec.at } else { NONE };
            while c != NONE {
                let part = core.part_of(c, shard).and_then(Part::block);
                if part.is_some_and(|b| core.blocks[b].slot == NONE && core.blocks[b].keep == Keep::Write) {
                    return core.finish_with(s, op, Status::NoSpace, Level::Published as u64);
                }
                c = core.index.recs[c as usize].parent;
            }
        });
    }

    /// No slot is to be had for the block before others give theirs up: what stands on it may have one, and waits for it.
    pub(crate) fn no_slot_for(&mut self, b: BlockId) {
        self.blocks.pass_over(b);
        self.no_room_for(b);
    }

    /// No host frame or no slot is to be had on a block's way to NVMe before running sequences give theirs up: neither it nor what
    /// stands on it is waited for, but goes there later.
    pub(crate) fn no_room_for(&mut self, b: BlockId) {
        let (top, shard) = (self.blocks[b].content, self.blocks[b].shard);
        let mut next = Some(top).filter(|&c| c != NONE);
        while let Some(c) = next {
            if let Some(Part::Hot(part)) = self.part_of(c, shard)
                && std::mem::take(&mut self.blocks[part].waited)
            {
                self.end_publishes(c, shard, Status::NoSpace);
            }
            next = self.next_below(c, top);
        }
    }

    fn each_publish(&mut self, mut look: impl FnMut(&mut Core, u16, u32)) {
        for s in 0..self.sessions.len() as u16 {
            if self.sessions[usize::from(s)].life != Life::Live {
                continue;
            }
            let mut op = self.sessions[usize::from(s)].ops.keeping.head;
            while op != NONE {
                let next = self.sessions[usize::from(s)].ops[op].links.next;
                look(self, s, op);
                op = next;
            }
        }
    }
}

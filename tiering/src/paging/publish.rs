//! Publish: makes sealed blocks findable by hash, and persists them as requested.

use crate::api::{Cause, Level, NONE, SeqId, Status};
use crate::disk::HASHES_MAX;
use crate::index::why_not_stored;
use crate::paging::Paging;
use crate::sessions::{Publish, Who};

/// Arguments of a publish.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishArgs<'a> {
    pub seq: SeqId,
    pub first: u32,
    pub parent: u128,
    pub hashes: &'a [u128],
    pub level: Level,
}

impl Paging<'_> {
    /// Execute a publish. The level reached is the value of the completion.
    pub(crate) fn publish(&mut self, who: Who, publish: PublishArgs<'_>, due: u64) {
        match self.try_publish(who.session, publish) {
            Err(status) => self.complete(who, status, Level::Published as u64),
            Ok(NONE) => self.complete(who, Status::Ok, publish.level as u64),
            Ok(_) if publish.level == Level::Published => self.complete(who, Status::Ok, Level::Published as u64),
            Ok(c) => self.publish_and_persist(who, c, publish, due),
        }
    }

    /// Persist the range that ends with cache entry `c` as requested. When `c` is stored, so are all its ancestors.
    fn publish_and_persist(&mut self, who: Who, c: u32, publish: PublishArgs<'_>, due: u64) {
        let block = match self.block_to_persist(who.session, c, publish.level) {
            Ok(block) => block,
            Err(status) => return self.complete(who, status, Level::Published as u64),
        };
        let count = publish.hashes.len() as u32;
        let publish = Publish { entry: c, count, level: publish.level, flush: 0 };
        if let Some(op) = self.new_op(who, NONE, publish, due) {
            self.wait_for_persist(who.session, op, publish, block);
        }
    }

    /// Publish the blocks. Return the cache entry of the last one; `NONE` if there are no blocks.
    fn try_publish(&mut self, s: u16, publish: PublishArgs<'_>) -> Result<u32, Status> {
        let PublishArgs { seq, first, parent, hashes, level } = publish;
        let q = *self.live_seq(s, seq).ok_or(Status::NotFound)?;
        if hashes.len() > HASHES_MAX {
            return Err(Status::Limit);
        }
        let end = u64::from(first) + hashes.len() as u64;
        if end > u64::from(q.blocks()) {
            return Err(Status::Range);
        }
        if end > q.tokens / self.geo().page_tokens || q.busy != 0 {
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
                    hashes.iter().for_each(|&hash| self.note_absent(hash, Cause::StoreNoParent));
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
                hashes[i..].iter().for_each(|&hash| self.note_absent(hash, cause));
            })?;
        }
        self.wake(s);
        Ok(if hashes.is_empty() { NONE } else { above })
    }
}

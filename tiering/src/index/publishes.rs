//! Publishes that wait until their blocks are stored, or durable.

use crate::api::{BlockId, Level, NONE, Status};
use crate::blocks::PersistState;
use crate::index::PrefixIndex;
use crate::sessions::{Life, Op, Publish, Work};
use crate::tables::index::ShardCopy;

impl PrefixIndex {
    /// Return whether a publish waits for a record.
    pub(crate) fn publishes_wait(&self) -> bool {
        let waits = |op: &Op| matches!(op.work, Work::Publish(publish) if publish.flush == 0);
        self.sessions().iter().any(|s| s.ops.persisting.iter(&s.ops.recs).any(|op| waits(&s.ops[op])))
    }

    /// Continue the publishes that wait for the record of a block, which is now valid.
    pub(crate) fn publishes_stored(&mut self, c: u32, shard: u16) {
        self.each_publish(|index, s, op, publish| {
            if publish.entry == c && publish.flush == 0 && index.session(s).shard == shard {
                index.publish_stored(s, op, publish);
            }
        });
    }

    pub(crate) fn publish_stored(&mut self, s: u16, op: u32, publish: Publish) {
        if publish.level < Level::Durable {
            return self.finish_with(s, op, Status::Ok, Level::Stored as u64);
        }
        // A flush in progress may have started too early.
        let flush = self.disk.want_flush();
        self.set_work(s, op, Publish { entry: NONE, flush, ..publish });
    }

    /// Complete the publishes that wait for flush `done`, which ended, or for an earlier one.
    pub(crate) fn publishes_flushed(&mut self, done: u64, status: Status) {
        self.each_publish(|index, s, op, publish| match status {
            _ if publish.flush == 0 || publish.flush > done => {}
            Status::Ok => {
                index.counters.durable += u64::from(publish.count);
                index.finish_with(s, op, Status::Ok, Level::Durable as u64);
            }
            _ => index.finish_with(s, op, Status::Io, Level::Stored as u64),
        });
    }

    /// End the publishes that wait for the record of a cache entry that will not be stored.
    pub(crate) fn end_publishes(&mut self, c: u32, shard: u16, status: Status) {
        self.each_publish(|index, s, op, publish| {
            if publish.entry == c && index.session(s).shard == shard {
                index.finish_with(s, op, status, Level::Published as u64);
            }
        });
    }

    /// End the publishes that wait for a record: nothing can be stored for a long time.
    pub(crate) fn fail_publishes(&mut self, status: Status) {
        self.each_publish(|index, s, op, publish| {
            if publish.flush == 0 {
                index.finish_with(s, op, status, Level::Published as u64);
            }
        });
    }

    /// End the publishes with a block or ancestor that needs a slot while NVMe has none free. The scan of pending blocks covers
    /// only a part of them at a time, and its next part may run much later.
    pub(crate) fn end_publishes_without_slots(&mut self) {
        self.each_publish(|index, s, op, publish| {
            let shard = index.session(s).shard;
            let end = if publish.flush == 0 { publish.entry } else { NONE };
            let needs = |b| index.block(b).slot == NONE && index.block(b).persist == PersistState::Write;
            if index.index.prefix(end).filter_map(|c| index.copy_of(c, shard)?.block()).any(needs) {
                index.finish_with(s, op, Status::NoSpace, Level::Published as u64);
            }
        });
    }

    /// Skip a block that gets no slot until others are freed. Its descendants may have slots and wait for it.
    pub(crate) fn no_slot_for(&mut self, b: BlockId) {
        self.pass_over(b);
        self.no_room_for(b);
    }

    /// End the waits for a block and its descendants: no host frame or slot on the way to NVMe is free until running sequences
    /// release theirs. The blocks are written later.
    pub(crate) fn no_room_for(&mut self, b: BlockId) {
        let (top, shard) = (self.block(b).entry, self.block(b).shard);
        let mut next = Some(top).filter(|&c| c != NONE);
        while let Some(c) = next {
            if let Some(ShardCopy::Block(copy)) = self.copy_of(c, shard)
                && self.set_waited(copy, false)
            {
                self.end_publishes(c, shard, Status::NoSpace);
            }
            next = self.index.next_below(c, top);
        }
    }

    fn each_publish(&mut self, mut look: impl FnMut(&mut PrefixIndex, u16, u32, Publish)) {
        for s in 0..self.sessions().len() {
            if self.session(s).life != Life::Live {
                continue;
            }
            let mut op = self.session(s).ops.persisting.head;
            while op != NONE {
                let Op { links, work, .. } = *self.op(s, op);
                if let Work::Publish(publish) = work {
                    look(self, s, op, publish);
                }
                op = links.next;
            }
        }
    }
}

//! Reserve: allocates new blocks, each with a tier-0 frame for every plane.

use crate::actions::{ActionBuf, LIST_MAX};
use crate::api::{BlockId, NONE, SeqId, Status};
use crate::blocks::NewJob;
use crate::counters::Reason;
use crate::disk::Admit;
use crate::paging::{Next, Paging};
use crate::sessions::{Phase, Reserve, Task, Who};

impl Paging<'_> {
    pub(crate) fn reserve(&mut self, who: Who, seq: SeqId, count: u32, due: u64) {
        let s = who.session;
        match self.live_seq(s, seq) {
            None => return self.complete(who, Status::NotFound, 0),
            Some(q) if q.parked || q.busy != 0 => return self.complete(who, Status::State, 0),
            Some(_) => {}
        }
        if count as usize > LIST_MAX || !self.list_fits(s, seq, count) {
            return self.complete(who, Status::Limit, 0);
        }
        if let Some(op) = self.new_op(who, seq, Reserve { count, next: (NONE, 0) }, due) {
            self.enter(s, op, Phase::Admission);
        }
    }

    /// Admit a reserve if there is capacity: create its blocks and charge them.
    pub(crate) fn admit_reserve(&mut self, s: u16, op: u32, Reserve { count, .. }: Reserve) -> Admit {
        match self.admit_ids(s, count) {
            Admit::Yes => {}
            other => return other,
        }
        match self.admit(s, u64::from(count), u64::from(count)) {
            Admit::Yes => {}
            other => return other,
        }
        for _ in 0..count {
            self.new_block(s, op);
        }
        let next = (self.op(s, op).blocks.head, 0);
        self.set_work(s, op, Reserve { count, next });
        Admit::Yes
    }

    /// Add a new unsealed block to an op's chain. The caller checked that an id is free.
    pub(crate) fn new_block(&mut self, s: u16, op: u32) -> Option<BlockId> {
        let shard = self.session(s).shard;
        let b = self.alloc_block(shard)?;
        self.add_ref(s, b);
        self.count_unsealed(s, true);
        self.chain(s, op, b);
        Some(b)
    }

    /// Give the next page of a reserve its frame.
    pub(crate) fn reserve_next(&mut self, s: u16, op: u32, reserve: Reserve, buf: &mut ActionBuf) -> Next {
        let (block, plane) = reserve.next;
        if block == NONE {
            return Next::AllSent;
        }
        let class = self.geo().class_of(plane);
        if !self.can_send(s, buf) {
            return Next::Stalled;
        }
        let Some(pick) = self.pick_any(s, class) else { return Next::Stalled };
        let page = self.geo().page(block, plane);
        self.place(s, pick, NewJob { task: Task::Install, page, reason: Reason::Request, op, source: NONE }, buf);
        let next = self.next_in_chain(reserve.next);
        self.set_work(s, op, Reserve { next, ..reserve });
        Next::Sent
    }

    /// Return the page after one of a block in a chain: the next plane, or the first of the next block.
    pub(crate) fn next_in_chain(&self, (block, plane): (BlockId, u16)) -> (BlockId, u16) {
        match usize::from(plane) + 1 == self.geo().planes.len() {
            true => (self.block(block).links.next, 0),
            false => (block, plane + 1),
        }
    }

    /// Append the granted blocks to the sequence, and write their ids.
    pub(crate) fn complete_reserve(
        &mut self,
        s: u16,
        op: u32,
        Reserve { count, .. }: Reserve,
        buf: &mut ActionBuf,
    ) -> (Status, u64) {
        let seq = self.op(s, op).seq;
        if !self.list_fits(s, seq, count) {
            // Other requests have filled the sequence or the pool of chunks meanwhile.
            self.undo_op(s, op);
            return (Status::Limit, 0);
        }
        while let Some(b) = self.pop_chain(s, op) {
            self.append_block(s, seq, b);
            buf.push_word(b);
        }
        (Status::Ok, u64::from(count))
    }
}

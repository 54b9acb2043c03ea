//! Load: copies blocks of a lease, or of any sequence, into an engine's own memory. Load hashed: copies cached blocks into a relay's
//! memory, which changes as little as possible for engines.

use crate::actions::{ActionBuf, LIST_MAX};
use crate::api::{BlockId, IoClass, NONE, SeqId, Status};
use crate::block_api::{BlockApi, BlockCopy, Sent};
use crate::counters::Reason;
use crate::disk::HASHES_MAX;
use crate::host::{Fetch, Take, Want};
use crate::lists::List;
use crate::sessions::{Copies, JobRec, Load, LoadHashed, Op, Phase, Task, Who, Work};
use crate::tables::index::ShardCopy;

impl BlockApi<'_> {
    /// Copy the blocks of a sequence from index `first` on into the engine's blocks `engine`.
    pub(crate) fn load(&mut self, who: Who, (seq, first): (SeqId, u32), engine: &[u32], due: u64) {
        if engine.contains(&NONE) {
            return self.complete(who, Status::Invalid, 0);
        }
        let s = who.session;
        let Some(&q) = self.live_seq(s, seq) else { return self.complete(who, Status::NotFound, 0) };
        if q.busy != 0 || q.parked {
            return self.complete(who, Status::State, 0);
        }
        if engine.len() > LIST_MAX {
            // All of them may fail, and the completion lists the failed ones.
            return self.complete(who, Status::Limit, 0);
        }
        let count = engine.len() as u32;
        if first.checked_add(count).is_none_or(|end| end > q.blocks()) {
            return self.complete(who, Status::Range, 0);
        }
        if u64::from(first + count) * self.geo().page_tokens > q.tokens {
            // Unsealed blocks belong to the engine and are in tier 0.
            return self.complete(who, Status::State, 0);
        }
        if !self.copiers[s].copies.fit(count as usize) {
            return self.complete(who, Status::Again, 0);
        }
        let load = Load { first, copies: Copies::default() };
        let Some(op) = self.new_op(who, seq, load, due) else { return };
        let mut list = List::default();
        for (index, &engine) in (0u32..).zip(engine) {
            let block = self.seq_block(s, seq, first + index);
            self.add_in_flight(block);
            self.copiers[s].copies.push(&mut list, BlockCopy { block, engine, index, ..BlockCopy::default() });
        }
        self.set_copies(s, op, Copies { list, ..Copies::default() });
        self.enter(s, op, Phase::Copying);
    }

    /// Copy cached blocks, each whole, into the blocks `engine` of a relay.
    pub(crate) fn load_hashed(&mut self, who: Who, hashes: &[u128], engine: &[u32], due: u64) {
        let s = who.session;
        if hashes.is_empty() || hashes.len() != engine.len() || engine.contains(&NONE) {
            return self.complete(who, Status::Invalid, 0);
        }
        if hashes.len() > HASHES_MAX {
            return self.complete(who, Status::Limit, 0);
        }
        if !self.copiers[s].copies.fit(hashes.len()) {
            return self.complete(who, Status::Again, 0);
        }
        let Some(op) = self.new_op(who, NONE, LoadHashed::default(), due) else { return };
        let mut list = List::default();
        for (index, (&hash, &engine)) in (0u32..).zip(hashes.iter().zip(engine)) {
            let found = self.block_of(s, hash);
            let mut copy = BlockCopy { block: NONE, engine, index, ..BlockCopy::default() };
            match found {
                Ok(block) => {
                    self.add_in_flight(block);
                    copy.block = block;
                }
                Err(status) => copy.status = Some(status),
            }
            self.copiers[s].copies.push(&mut list, copy);
        }
        self.set_copies(s, op, Copies { list, ..Copies::default() });
        self.enter(s, op, Phase::Copying);
        self.begin_read_by_hash();
    }

    /// Return the block of a hash in the session's shard. An entry that is only on NVMe gets one.
    fn block_of(&mut self, s: u16, hash: u128) -> Result<BlockId, Status> {
        let shard = self.session(s).shard;
        let c = self.index.find(hash).filter(|&c| self.index.is_whole(c)).ok_or(Status::NotFound)?;
        match self.copy_of(c, shard) {
            Some(ShardCopy::Block(b)) => Ok(b),
            Some(ShardCopy::IndexOnly(at)) => self.give_block(c, at).ok_or(Status::NoSpace),
            Some(ShardCopy::End) | None => Err(Status::NotFound),
        }
    }

    /// Send the next page of a block to load.
    pub(crate) fn scatter_next(&mut self, s: u16, op: u32, at: u32, buf: &mut ActionBuf) -> Sent {
        let copy = self.copiers[s].copies[at];
        let Op { work, status, .. } = *self.op(s, op);
        let by_hash = matches!(work, Work::LoadHashed(_));
        let page = self.geo().page(copy.block, copy.plane);
        let state = *self.page(page);
        if self.copies_of(s, op).ending {
            return Sent::Never(status);
        }
        if state.out_of_window() {
            // The lease's prefix does not need it. A read by hash keeps the block for readers of any prefix.
            return if by_hash { Sent::Never(Status::Lost) } else { Sent::Yes };
        }
        if state.host != NONE {
            if !self.can_send_last(s, buf) || !self.may_copy(s, self.geo().class_of_page(page)) {
                return Sent::Full;
            }
            let host = self.read_host(page);
            self.send_page(s, op, at, JobRec { task: Task::Scatter, page, host, ..JobRec::default() }, buf);
            return Sent::Yes;
        }
        if state.lost() || !self.block(copy.block).live() {
            return Sent::Never(Status::Lost);
        }
        if self.only_on_disk(page) {
            let (class, reason, take) = match by_hash {
                true => (IoClass::Prefetch, Reason::Scheduled, Take::Spare),
                false => (IoClass::Demand, Reason::Request, Take::Any),
            };
            self.copiers[s].copies[at].from_nvme = true;
            let planes = (0, self.geo().planes.len() as u16);
            let fetch = self.read_in(page, Want { class, reason, take, planes }, buf);
            let never = fetch == Fetch::NoFrame && by_hash;
            return if never { Sent::Never(Status::NoSpace) } else { Sent::Later };
        }
        self.fetch_from_elsewhere(page, buf);
        Sent::Later
    }

    /// Record the end of the copy of one page into an engine's block.
    pub(crate) fn page_scattered(&mut self, s: u16, job: JobRec, ok: bool, status: Status) {
        let by_hash = matches!(self.op(s, job.op).work, Work::LoadHashed(_));
        // A read for a relay is not a prefetch.
        if ok && self.host.set_read_ahead(job.host, false) && !by_hash {
            self.counters.prefetch_used += 1;
            self.copiers[s].copies[job.copy].from_nvme = true;
        }
        self.host_read(job.page);
        if status == Status::Corrupt {
            self.host_copy_is_bad(job.page);
        }
    }

    /// Complete a request after all its blocks have arrived or failed.
    pub(crate) fn all_scattered(&mut self, s: u16, op: u32) {
        self.release_copies(s, op);
        self.keep_failed(s, op);
    }

    /// Undo a load of a session that ended.
    pub(crate) fn undo_load(&mut self, s: u16, op: u32) {
        self.release_copies(s, op);
        self.forget_copies(s, op);
    }

    /// Release the blocks that a load holds.
    fn release_copies(&mut self, s: u16, op: u32) {
        let planes = self.geo().planes.len();
        let mut at = self.copies_of(s, op).list.head;
        while at != NONE {
            let copy = &mut self.copiers[s].copies[at];
            let (block, next) = (std::mem::replace(&mut copy.block, NONE), copy.links.next);
            if usize::from(copy.plane) < planes && copy.status.is_none() {
                copy.status = Some(Status::Canceled);
            }
            if block != NONE {
                self.remove_in_flight(block);
            }
            at = next;
        }
    }
}

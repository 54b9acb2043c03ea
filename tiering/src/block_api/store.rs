//! Store: copies an engine's blocks into new blocks in host frames, and publishes them under their hashes only after the copies.

use crate::actions::ActionBuf;
use crate::api::{BlockId, Cause, Level, NONE, Status};
use crate::block_api::{BlockApi, BlockCopy, Sent};
use crate::disk::{Admit, HASHES_MAX};
use crate::host::For;
use crate::index::why_not_stored;
use crate::lists::List;
use crate::mutants::{self, Mutant};
use crate::sessions::{Copies, JobRec, Phase, Store, Task, Who};

/// Arguments of a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreArgs<'a> {
    /// Index of the first block in its prefix.
    pub first: u32,
    /// Hash of the parent of the first block; 0: none.
    pub parent: u128,
    pub hashes: &'a [u128],
    /// The engine's blocks.
    pub engine: &'a [u32],
    pub level: Level,
}

impl BlockApi<'_> {
    pub(crate) fn store_blocks(&mut self, who: Who, store: StoreArgs<'_>, due: u64) {
        let s = who.session;
        let StoreArgs { first, parent, hashes, engine, level } = store;
        let pairs = hashes.len() == engine.len() && !hashes.is_empty();
        let named = !hashes.contains(&0) && !engine.contains(&NONE) && (parent == 0) == (first == 0);
        let refusal = if !pairs || !named || !self.is_next(s, first, parent) {
            Some(Status::Invalid)
        } else if hashes.len() > HASHES_MAX
            || u64::from(first) + hashes.len() as u64 > u64::from(self.cfg().limits.seq_blocks_max)
        {
            Some(Status::Limit)
        } else if !self.copiers[s].copies.fit(hashes.len()) {
            Some(Status::Again)
        } else {
            None
        };
        if let Some(status) = refusal {
            return self.complete(who, status, 0);
        }
        let store = Store { first, parent, above: 0, level, new: 0, next: NONE, copies: Copies::default() };
        let Some(op) = self.new_op(who, NONE, store, due) else { return };
        let mut list = List::default();
        let shard = self.session(s).shard;
        let (mut new, mut above) = (0, parent);
        for (index, (&hash, &engine)) in (0u32..).zip(hashes.iter().zip(engine)) {
            let copy = self.index.find(hash).and_then(|c| self.copy_of(c, shard));
            // Cached blocks have cached ancestors: the new blocks follow the last cached one.
            above = if copy.is_some() { hash } else { above };
            // A partial block (without pages of windows) is replaced.
            let cached = copy.is_some_and(|copy| self.may_be_superseded(copy).is_none());
            new += u32::from(!cached);
            // Without a block yet: `admit_store` allocates one unless the block is cached.
            let plane = if cached { self.geo().planes.len() as u16 } else { 0 };
            let copy = BlockCopy { block: NONE, engine, index, hash, plane, ..BlockCopy::default() };
            self.copiers[s].copies.push(&mut list, copy);
        }
        let copies = Copies { list, ..Copies::default() };
        self.set_work(s, op, Store { above, new, next: list.head, copies, ..store });
        self.hold_parent(above);
        self.enter(s, op, Phase::Admission);
    }

    /// Admit a store if there is capacity: create its blocks and charge them.
    pub(crate) fn admit_store(&mut self, s: u16, op: u32, Store { new, copies, .. }: Store) -> Admit {
        match self.admit_ids(s, new) {
            Admit::Yes => {}
            other => return other,
        }
        // Each page needs a host frame, independent of the room in tier 0.
        for class in 0..self.geo().classes.len() {
            let pages = u64::from(new) * u64::from(self.geo().classes[class].planes);
            match self.admit_host(class as u8, pages, new.into()) {
                Admit::Yes => {}
                other => return other,
            }
        }
        let mut at = copies.list.head;
        while at != NONE {
            let copy = self.copiers[s].copies[at];
            if copy.plane == 0 {
                // The ids were admitted.
                let block = self.new_block_in_host(s, op).unwrap_or(NONE);
                self.copiers[s].copies[at].block = block;
            }
            at = copy.links.next;
        }
        Admit::Yes
    }

    /// Add a new block to an op's chain. It is never in tier 0 and takes no room there. All its pages need host frames, and may be
    /// evicted.
    fn new_block_in_host(&mut self, s: u16, op: u32) -> Option<BlockId> {
        let shard = self.session(s).shard;
        let b = self.alloc_block(shard)?;
        self.set_parked(b, true);
        self.add_ref_in_host(b);
        self.chain(s, op, b);
        Some(b)
    }

    /// Send the next page of a block to store.
    pub(crate) fn gather_next(&mut self, s: u16, op: u32, at: u32, buf: &mut ActionBuf) -> Sent {
        let copy = self.copiers[s].copies[at];
        if self.copies_of(s, op).ending {
            return Sent::Never(self.op(s, op).status);
        }
        let page = self.geo().page(copy.block, copy.plane);
        if !self.can_store(s, buf) || !self.may_copy(s, self.geo().class_of_page(page)) {
            return Sent::Full;
        }
        if self.host.reader_waits(self.geo().class_of_page(page), self.now()) {
            self.host.want_frame();
            return Sent::Full;
        }
        // Admission reserved one.
        let Some(host) = self.take_host(s, page, For::Waiting) else { return Sent::Full };
        self.set_copying_out(page, true);
        let class = self.geo().class_of_page(page);
        self.host.count_copying(class, true);
        self.send_page(s, op, at, JobRec { task: Task::Gather, page, host, ..JobRec::default() }, buf);
        Sent::Yes
    }

    /// Return whether one more job of a store can be sent. Some job entries are reserved for loads, because requests wait for
    /// those.
    fn can_store(&self, s: u16, buf: &ActionBuf) -> bool {
        self.can_send(s, buf) && self.session(s).jobs.free_slots() > self.cfg().limits.jobs_max / 4
    }

    /// Record the end of the copy of one page into its host frame.
    pub(crate) fn page_gathered(&mut self, job: JobRec, ok: bool) {
        let class = self.geo().class_of_page(job.page);
        self.host.count_copying(class, false);
        self.set_copying_out(job.page, false);
        if ok && self.page(job.page).host == NONE {
            self.came_to_host(job.page, job.host);
        } else {
            self.host.free(job.host);
            self.host_freed();
        }
        self.settle_page(job.page);
        if self.disk.exists() {
            // Requests that waited for this frame check again: it can now be written back or evicted.
            self.host_freed();
            self.disk.wake();
        }
    }

    /// Publish the blocks with all pages arrived, up to the first incomplete one. None of the request's jobs is in flight.
    pub(crate) fn all_gathered(&mut self, s: u16, op: u32, store: Store) {
        let (status, Store { first, parent, level, copies: Copies { list, ending, .. }, .. }) =
            (self.op(s, op).status, store);
        let planes = self.geo().planes.len();
        // At its deadline the store keeps the blocks that arrived; the others found no room in time.
        let late = ending && status == Status::TimedOut;
        let mut why = (ending && !late).then_some(status);
        let missing = if late { Status::NotAdmitted } else { Status::Canceled };
        let has_parent = parent == 0 || self.index.find(parent).is_some();
        let mut above = match parent {
            0 => NONE,
            hash => self.index.find(hash).unwrap_or_else(|| {
                // The parent of the first block was dropped, or was never cached.
                if !mutants::on(Mutant::StoreWithoutParent) {
                    why = why.or(Some(Status::NotAdmitted));
                }
                NONE
            }),
        };
        // Published blocks may move to another list.
        while self.pop_chain(s, op).is_some() {}
        self.note_relayed(s, true);
        let mut at = list.head;
        while at != NONE {
            let copy = self.copiers[s].copies[at];
            let whole = usize::from(copy.plane) == planes;
            why = why.or(copy.status).or((!whole).then_some(missing));
            if why.is_none() {
                match self.publish_copy(s, &copy, first + copy.index, above, level) {
                    Ok(c) => above = c,
                    Err(status) => why = Some(status),
                }
            }
            self.copiers[s].copies[at].status = why;
            if let Some(status) = why {
                let cause = if has_parent { why_not_stored(status) } else { Cause::StoreNoParent };
                self.note_absent(copy.hash, cause);
            }
            at = copy.links.next;
        }
        self.note_relayed(s, false);
        // Published blocks stay cached, the others are freed. The deepest comes first, so that a prefix outlives its descendants.
        let mut at = list.tail;
        while at != NONE {
            let copy = &mut self.copiers[s].copies[at];
            let (block, prev) = (std::mem::replace(&mut copy.block, NONE), copy.links.prev);
            if block != NONE {
                self.drop_ref(s, block);
            }
            at = prev;
        }
        self.disk.wake();
        self.host_freed(); // blocks that NVMe refused may be evicted from now on
        self.release_parent(s, op);
        self.keep_failed(s, op);
        let ops = &self.session(s).ops;
        if ops[op].status == Status::Ok && level != Level::Published && above != NONE {
            let count = ops.copies(op).arrived;
            self.wait_until_persisted(s, op, above, count, level);
            // Its deadline is over and forgotten, so nothing else would end it.
            if late && self.op(s, op).phase == Phase::Persisting {
                self.fail_op(s, op, Status::TimedOut);
            }
        }
    }

    fn publish_copy(&mut self, s: u16, copy: &BlockCopy, depth: u32, above: u32, level: Level) -> Result<u32, Status> {
        if copy.block == NONE {
            let shard = self.session(s).shard;
            return self.publish_cached(shard, copy.hash, above, level);
        }
        self.set_sealed(copy.block);
        for page in self.pages_of(copy.block) {
            self.settle_page(page);
        }
        self.publish_block((copy.block, depth), copy.hash, above, level)
    }
}

//! References to blocks, and the return of block ids to the free list.
//!
//! An unreferenced block that is not published dies. It leaves all lists and waits until no job names it (`in_flight`). Then one Drop
//! job for each session that shows any of its pages invalidates it. The id is free only when all of these have ended. Otherwise a
//! stale page-table entry would show another block's data.

use crate::api::{BlockId, NONE, SeqId, SessionId};
use crate::blocks::{
    BlockState, BlockTable, FrameState, NEUTRAL_PRIORITY, NO_LANE, NO_SESSION, On, Page, PersistState,
};
use crate::mutants::{self, Mutant};
use crate::tables::index::evict::Priority;

impl BlockTable {
    pub(crate) fn pop_chain(&mut self, s: u16, op: u32) -> Option<BlockId> {
        let mut chain = self.op(s, op).blocks;
        let b = chain.pop_front(&mut self.blocks.recs);
        self.set_chain(s, op, chain);
        b
    }

    /// Allocate a new block, unsealed and unreferenced. Return `None` if no id is free.
    pub(crate) fn alloc_block(&mut self, shard: u16) -> Option<BlockId> {
        let b = self.blocks.alloc(shard)?;
        // The id is used for the first time. The capacity was reserved at the start.
        let pages = self.blocks.recs.len() * self.geo().planes.len();
        if self.pages.len() < pages {
            self.pages.resize(pages, Page::default());
        }
        Some(b)
    }

    /// Count an operation in flight that names the block: its id and its frames stay.
    pub(crate) fn add_in_flight(&mut self, b: BlockId) {
        self.blocks[b].in_flight += 1;
    }

    pub(crate) fn remove_in_flight(&mut self, b: BlockId) {
        let block = &mut self.blocks[b];
        block.in_flight -= 1;
        match (block.in_flight, block.state) {
            (0, BlockState::Dying) => self.start_drop(b),
            (0, BlockState::Dropping) => self.free_block(b),
            _ => {}
        }
    }

    /// Add a reference of a sequence or request of session `s` to the block.
    pub(crate) fn add_ref(&mut self, s: u16, b: BlockId) {
        let block = &mut self.blocks[b];
        if block.refs() == 0 {
            (block.home, block.refs_home) = (s, 1);
            let entry = block.entry;
            self.blocks.referred += 1;
            self.charge(Some(s), b, true);
            if entry != NONE {
                self.index.activate(entry);
            }
        } else if block.home == s {
            block.refs_home += 1;
        } else {
            block.refs_other += 1;
            if block.refs_other == 1 && block.refs_home > 0 {
                // Several sessions read it now, so each of its pages needs a host frame.
                let home = block.home;
                self.charge(Some(home), b, false);
                self.charge(None, b, true);
            }
        }
        self.settle_hosts_of(b);
    }

    /// Add a reference of a request to a new block. The block has no home in a tier 0: all of it is charged to host.
    pub(crate) fn add_ref_in_host(&mut self, b: BlockId) {
        self.blocks[b].refs_other += 1;
        self.blocks.referred += 1;
        self.charge(None, b, true);
    }

    /// Remove a reference of session `s`. The last one frees a block that is not published.
    pub(crate) fn drop_ref(&mut self, s: u16, b: BlockId) {
        let entry = self.blocks[b].entry;
        if entry != NONE {
            let priority = self.priority_for(s, b);
            let position = u64::from(self.blocks[b].depth) * self.geo().page_tokens;
            self.index.end_use(entry, position, priority);
        }
        let block = &mut self.blocks[b];
        let home = block.home;
        let was_shared = block.refs_other > 0;
        if home == s {
            block.refs_home -= 1;
        } else {
            block.refs_other -= 1;
        }
        let (refs_home, refs_other) = (block.refs_home, block.refs_other);
        if refs_home == 0 {
            block.home = NO_SESSION;
        }
        match (was_shared, refs_home, refs_other) {
            (true, 0, 0) => self.charge(None, b, false),
            (true, _, 0) => {
                self.charge(None, b, false);
                self.charge(Some(home), b, true);
            }
            (false, 0, 0) => self.charge(Some(s), b, false),
            _ => {}
        }
        self.settle_hosts_of(b);
        if refs_home == 0 && refs_other == 0 {
            self.blocks.referred -= 1;
            let entry = self.blocks[b].entry;
            if entry == NONE {
                if self.blocks[b].state == BlockState::Unsealed && !self.blocks[b].parked {
                    self.count_unsealed(s, false);
                }
                self.die(b);
            } else {
                self.index.deactivate(entry);
                self.unmap_block(b);
            }
        }
    }

    /// Return the retention priority of the block, from the sequence of session `s` that uses it.
    fn priority_for(&self, s: u16, b: BlockId) -> Priority {
        let block = &self.blocks[b];
        let seq = self.lists[s].seqs.get(block.seq as usize).filter(|_| block.home == s);
        match seq.map_or(std::cmp::Ordering::Equal, |q| q.priority.cmp(&NEUTRAL_PRIORITY)) {
            std::cmp::Ordering::Less => Priority::Low,
            std::cmp::Ordering::Equal => Priority::Neutral,
            std::cmp::Ordering::Greater => Priority::High,
        }
    }

    /// Start the release of a block. No new operation is started on it.
    pub(crate) fn die(&mut self, b: BlockId) {
        debug_assert!(self.blocks[b].live() && self.blocks[b].entry == NONE);
        self.blocks[b].state = BlockState::Dying;
        self.blocks.dying += 1;
        for page in self.pages_of(b) {
            self.settle_page(page);
        }
        if mutants::on(Mutant::SlotFreedWhileMoving) {
            self.free_slot(b);
        }
        if self.blocks[b].in_flight == 0 {
            self.start_drop(b);
        }
    }

    /// Return the page ids of a block.
    pub(crate) fn pages_of(&self, b: BlockId) -> std::ops::Range<u32> {
        let first = self.geo().page(b, 0);
        first..first + self.geo().planes_len()
    }

    /// Queue the Drop jobs of a block that no job names any more, and free its host frames.
    fn start_drop(&mut self, b: BlockId) {
        if self.unmap_block(b) {
            // Its host frames stay until no mapped frame shows them. The last of these evictions calls this function again.
            return;
        }
        self.blocks[b].state = BlockState::Dropping;
        self.blocks.set_persist(b, PersistState::No);
        self.free_slot(b);
        for page in self.pages_of(b) {
            self.drop_host_copy(page);
            let (mut s, mut f) = (self.pages[page as usize].session, self.pages[page as usize].frame);
            while f != NONE {
                let frame = *self.frame(s, f);
                self.queue_drop(s, f, b);
                (s, f) = (frame.copy_session, frame.copy_frame);
            }
        }
        if mutants::on(Mutant::DropJobSkipped) {
            self.skip_drops(b);
        }
        if self.blocks[b].in_flight == 0 {
            self.free_block(b);
        }
    }

    /// Queue the Drop of block `b` in the session that shows it in frame `f`, unless another frame of it has already queued it.
    fn queue_drop(&mut self, s: u16, f: u32, b: BlockId) {
        self.unlist(s, f);
        if self.tier0[s].drop_mark != b {
            self.tier0[s].drop_mark = b;
            self.enlist(s, f, On::Drop, NO_LANE);
            self.add_in_flight(b);
            self.wake(s);
        }
    }

    /// Deliberate fault: free the frames at once, without a job.
    fn skip_drops(&mut self, b: BlockId) {
        for page in self.pages_of(b) {
            while self.pages[page as usize].frame != NONE {
                let (s, f) = (self.pages[page as usize].session, self.pages[page as usize].frame);
                self.remove_copy(page, s, f);
                self.free_frame(s, f);
            }
        }
        self.blocks[b].in_flight = 0;
    }

    /// Free the block's frames in a session that has invalidated the block.
    pub(crate) fn dropped(&mut self, s: u16, b: BlockId) {
        for page in self.pages_of(b) {
            if let Some(f) = self.find_copy(page, s) {
                self.remove_copy(page, s, f);
                self.counters.transitions += u64::from(self.frame(s, f).state == FrameState::Present);
                self.free_frame(s, f);
            }
        }
        self.remove_in_flight(b);
    }

    fn free_block(&mut self, b: BlockId) {
        for page in self.pages_of(b) {
            debug_assert!(self.pages[page as usize].frame == NONE && self.pages[page as usize].host == NONE);
            self.pages[page as usize] = Page::default();
        }
        for s in self.tier0.iter_mut() {
            if s.drop_mark == b {
                s.drop_mark = NONE;
            }
        }
        if let Some(freed) = &mut self.freed {
            freed.push(b);
        }
        self.blocks.dying -= 1;
        self.blocks.release(b);
        self.wake_admission();
    }

    /// Add the block's unsealed pages to those that must stay in the session's tier 0, or remove them.
    pub(crate) fn count_unsealed(&mut self, s: u16, add: bool) {
        for (class, geo) in self.tier0[s].classes.iter_mut().zip(&self.below.geo().classes) {
            let pages = u64::from(geo.planes);
            class.unsealed = if add { class.unsealed + pages } else { class.unsealed - pages };
        }
    }

    /// Make `disk` the preferred disk of the sequence that uses a block.
    pub(crate) fn set_preferred_disk(&mut self, b: BlockId, disk: u16) {
        if let Some((s, seq)) = self.chain_of(b) {
            self.lists[s].seqs[seq as usize].disk = Some(disk);
        }
    }

    /// Return the session and the sequence that used a block last.
    pub(crate) fn chain_of(&self, b: BlockId) -> Option<(SessionId, SeqId)> {
        let block = &self.blocks[b];
        let live = self.lists.get(block.home)?.seqs.get(block.seq as usize)?.live;
        live.then_some((block.home, block.seq))
    }

    /// Release the block's slot and its copies on disk. The slot is free when its log record is erased. No transfer names it.
    fn free_slot(&mut self, b: BlockId) {
        for page in self.pages_of(b) {
            self.pages[page as usize].set_on_disk(false);
        }
        let at = std::mem::replace(&mut self.blocks[b].slot, NONE);
        if at != NONE {
            self.disk.release(at);
        }
    }
}

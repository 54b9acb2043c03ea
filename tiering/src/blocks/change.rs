//! What layers above read of the blocks, and what they change of a page or a block, by event. Frames and lists have files of their own.

use crate::api::{BlockId, NONE, SessionId};
use crate::blocks::{Block, BlockState, BlockTable, Chunks, Page, PersistState, Sequences, Tier0};
use crate::sessions::PerSession;
use crate::tables::index::{Link, ShardCopy};

impl BlockTable {
    pub(crate) fn page(&self, page: u32) -> &Page {
        &self.pages[page as usize]
    }

    /// Return all pages, by id.
    pub(crate) fn pages(&self) -> &[Page] {
        &self.pages
    }

    pub(crate) fn block(&self, b: BlockId) -> &Block {
        &self.blocks[b]
    }

    pub(crate) fn blocks(&self) -> &super::Blocks {
        &self.blocks
    }

    /// Return the frames and lanes of a session.
    pub(crate) fn tier0(&self, s: SessionId) -> &Tier0 {
        &self.tier0[s]
    }

    pub(crate) fn tier0s(&self) -> &PerSession<Tier0> {
        &self.tier0
    }

    /// Return the sequences of a session.
    pub(crate) fn lists(&self, s: SessionId) -> &Sequences {
        &self.lists[s]
    }

    pub(crate) fn chunks(&self) -> &Chunks {
        &self.chunks
    }

    /// A host frame has the page's bytes now.
    pub(crate) fn came_to_host(&mut self, page: u32, at: u32) {
        debug_assert!(self.pages[page as usize].host == NONE);
        self.pages[page as usize].host = at;
        self.counters.transitions += 1;
    }

    /// The page gives its host frame up, which is returned.
    pub(crate) fn left_host(&mut self, page: u32) -> u32 {
        self.counters.transitions += 1;
        std::mem::replace(&mut self.pages[page as usize].host, NONE)
    }

    /// The slot of the page's block has its bytes, or not any more.
    pub(crate) fn set_on_disk(&mut self, page: u32, on: bool) {
        self.pages[page as usize].set_on_disk(on);
    }

    /// A transfer that reads the page into host begins or has ended.
    pub(crate) fn set_reading(&mut self, page: u32, on: bool) {
        self.pages[page as usize].set_reading(on);
    }

    /// A transfer that writes the page to its slot begins or has ended.
    pub(crate) fn set_writing(&mut self, page: u32, on: bool) {
        self.pages[page as usize].set_writing(on);
    }

    /// A job that stores the page in host begins or has ended.
    pub(crate) fn set_copying_out(&mut self, page: u32, on: bool) {
        self.pages[page as usize].set_copying_out(on);
    }

    pub(crate) fn set_read_fails(&mut self, page: u32, fails: u8) {
        self.pages[page as usize].set_read_fails(fails);
    }

    pub(crate) fn set_copy_out_fails(&mut self, page: u32, fails: u8) {
        self.pages[page as usize].copy_out_fails = fails;
    }

    /// Count one more, or one fewer, reader of the page's host frame.
    pub(crate) fn count_load(&mut self, page: u32, more: bool) {
        let loads = &mut self.pages[page as usize].loads;
        *loads = if more { *loads + 1 } else { *loads - 1 };
    }

    /// The page's only copy was lost.
    pub(crate) fn set_lost(&mut self, page: u32) {
        self.pages[page as usize].set_lost();
    }

    /// The page is never read again.
    pub(crate) fn leave_window(&mut self, page: u32) {
        let b = self.geo().block_of(page);
        self.pages[page as usize].set_on_disk(false);
        self.pages[page as usize].set_out_of_window();
        self.blocks[b].partial = true;
    }

    /// The block never changes again.
    pub(crate) fn set_sealed(&mut self, b: BlockId) {
        (self.blocks[b].state, self.blocks[b].parked) = (BlockState::Sealed, false);
    }

    /// The pages of an unsealed block may leave tier 0, or must stay.
    pub(crate) fn set_parked(&mut self, b: BlockId, parked: bool) {
        self.blocks[b].parked = parked;
    }

    /// Number of blocks before the block in its prefix.
    pub(crate) fn set_depth(&mut self, b: BlockId, depth: u32) {
        self.blocks[b].depth = depth;
    }

    /// The block is its shard's copy of a cache entry now.
    pub(crate) fn set_entry(&mut self, b: BlockId, entry: u32, next_copy: ShardCopy) {
        (self.blocks[b].entry, self.blocks[b].next_copy) = (entry, Link::to(next_copy));
    }

    pub(crate) fn set_next_copy(&mut self, b: BlockId, next_copy: ShardCopy) {
        self.blocks[b].next_copy = Link::to(next_copy);
    }

    /// The block is no copy of a cache entry any more.
    pub(crate) fn forget_entry(&mut self, b: BlockId) {
        (self.blocks[b].entry, self.blocks[b].next_copy) = (NONE, Link::default());
    }

    /// Give a block a slot, or take it away (`NONE`). Return the one that it had.
    pub(crate) fn set_slot(&mut self, b: BlockId, slot: u32) -> u32 {
        let block = &mut self.blocks[b];
        let (before, entry) = (std::mem::replace(&mut block.slot, slot), block.entry);
        if entry != NONE {
            self.index.count_slot(entry, slot != NONE);
        }
        before
    }

    /// A publish waits for the block's record, or not any more. Return whether one did.
    pub(crate) fn set_waited(&mut self, b: BlockId, waited: bool) -> bool {
        std::mem::replace(&mut self.blocks[b].waited, waited)
    }

    pub(crate) fn set_persist(&mut self, b: BlockId, persist: PersistState) {
        self.blocks.set_persist(b, persist);
    }

    /// The last decision did not admit the block to NVMe, or is not known.
    pub(crate) fn set_not_admitted(&mut self, b: BlockId, not_admitted: bool) {
        self.blocks[b].not_admitted = not_admitted;
    }

    pub(crate) fn set_over_budget(&mut self, b: BlockId, over_budget: bool) {
        self.blocks.set_over_budget(b, over_budget);
    }

    pub(crate) fn set_committed(&mut self, b: BlockId, committed: bool) {
        self.blocks.set_committed(b, committed);
    }

    /// Write the block before others. Return false if it was to be already.
    pub(crate) fn prefer(&mut self, b: BlockId) -> bool {
        self.blocks.prefer(b)
    }

    /// Write other blocks before one that cannot be written now.
    pub(crate) fn pass_over(&mut self, b: BlockId) {
        self.blocks.pass_over(b);
    }

    pub(crate) fn set_write_fails(&mut self, b: BlockId, fails: u8) {
        self.blocks[b].write_fails = fails;
    }

    pub(crate) fn set_record_fails(&mut self, b: BlockId, fails: u8) {
        self.blocks[b].record_fails = fails;
    }

    /// Append a new block to a request's chain.
    pub(crate) fn chain(&mut self, s: u16, op: u32, b: BlockId) {
        let mut chain = self.op(s, op).blocks;
        chain.push_back(&mut self.blocks.recs, b);
        self.set_chain(s, op, chain);
    }
}

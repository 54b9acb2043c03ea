//! Sequences: their beginning and end, and their lists of blocks.

use crate::api::{BlockId, NONE, SeqId};
use crate::blocks::{BlockTable, Seq};
use crate::mutants::{self, Mutant};

impl BlockTable {
    pub(crate) fn touch_block(&mut self, s: u16, b: BlockId, seq: SeqId) {
        if self.blocks[b].home == s {
            self.blocks[b].seq = seq;
        }
        if self.blocks[b].slot != NONE {
            self.lists[s].seqs[seq as usize].disk = Some(self.disk.disk_of(self.blocks[b].slot));
        }
        self.counters.blocks_attached += 1;
    }

    /// Return whether a sequence of `blocks` full blocks has every window page that its next token reads.
    pub(crate) fn windows_whole(&self, s: u16, seq: SeqId, blocks: u32) -> bool {
        let tokens = u64::from(blocks) * self.geo().page_tokens;
        self.geo().windowed.iter().all(|&plane| {
            // The next token is the reader: its window begins one token later.
            (self.geo().first_needed(plane, tokens) as u32..blocks).all(|index| {
                let page = self.geo().page(self.seq_block(s, seq, index), plane);
                !self.pages[page as usize].out_of_window()
            })
        })
    }

    /// Return a sequence of the session if it exists.
    pub(crate) fn live_seq(&self, s: u16, seq: SeqId) -> Option<&Seq> {
        self.lists[s].seqs.get(seq as usize).filter(|q| q.live)
    }

    /// Return what layers above keep about a sequence, to change it. They cannot change its blocks.
    pub(crate) fn seq_mut(&mut self, s: u16, seq: SeqId) -> &mut Seq {
        &mut self.lists[s].seqs[seq as usize]
    }

    /// Start a sequence without blocks.
    pub(crate) fn begin_seq(&mut self, s: u16, seq: SeqId) -> &mut Seq {
        let q = self.seq_mut(s, seq);
        *q = Seq { live: true, ..Seq::default() };
        q
    }

    /// End a sequence whose blocks were dropped.
    pub(crate) fn end_seq(&mut self, s: u16, seq: SeqId) {
        *self.seq_mut(s, seq) = Seq { live: mutants::on(Mutant::DroppedSequenceStays), ..Seq::default() };
    }

    /// Return the block at an index that the caller checked.
    pub(crate) fn seq_block(&self, s: u16, seq: SeqId, index: u32) -> BlockId {
        self.chunks.get(self.lists[s].dir(seq), index)
    }

    /// Append a block with a reference that is already counted. The caller checked that it fits.
    pub(crate) fn append_block(&mut self, s: u16, seq: SeqId, b: BlockId) -> bool {
        let list = &mut self.lists[s];
        let len = list.seqs[seq as usize].blocks;
        let dir = &mut list.dirs[seq as usize * list.dir_len..(seq as usize + 1) * list.dir_len];
        if len >= self.below.cfg().limits.seq_blocks_max || !self.chunks.push(dir, len, b) {
            return false;
        }
        list.seqs[seq as usize].blocks += 1;
        if self.blocks[b].home == s {
            self.blocks[b].seq = seq;
        }
        true
    }

    /// Append a word that is not a block of the sequence yet. The caller checked that it fits.
    pub(crate) fn append_word(&mut self, s: u16, seq: SeqId, word: u32) -> bool {
        let list = &mut self.lists[s];
        let len = list.seqs[seq as usize].blocks;
        let dir = &mut list.dirs[seq as usize * list.dir_len..(seq as usize + 1) * list.dir_len];
        let pushed = self.chunks.push(dir, len, word);
        list.seqs[seq as usize].blocks += u32::from(pushed);
        pushed
    }

    /// Remove words that are not blocks from the end of the list until `keep` are left.
    pub(crate) fn forget_words(&mut self, s: u16, seq: SeqId, keep: u32) {
        while self.lists[s].seqs[seq as usize].blocks > keep {
            let list = &mut self.lists[s];
            let len = list.seqs[seq as usize].blocks;
            let dir = &mut list.dirs[seq as usize * list.dir_len..(seq as usize + 1) * list.dir_len];
            self.chunks.pop(dir, len);
            list.seqs[seq as usize].blocks -= 1;
        }
    }

    pub(crate) fn set_seq_word(&mut self, s: u16, seq: SeqId, index: u32, word: u32) {
        let dir = self.lists[s].dir(seq);
        self.chunks.set(dir, index, word);
    }

    /// Return whether a sequence's list can grow by `more` blocks.
    pub(crate) fn list_fits(&self, s: u16, seq: SeqId, more: u32) -> bool {
        let len = self.lists[s].seqs[seq as usize].blocks;
        len.checked_add(more).is_some_and(|sum| sum <= self.cfg().limits.seq_blocks_max)
            && super::Chunks::needed(len, more) <= self.chunks.free_chunks()
    }

    /// Drop the blocks from index `keep` on, deepest first, so that a prefix outlives its descendants.
    pub(crate) fn drop_tail(&mut self, s: u16, seq: SeqId, keep: u32) {
        while self.lists[s].seqs[seq as usize].blocks > keep {
            let list = &mut self.lists[s];
            let len = list.seqs[seq as usize].blocks;
            let dir = &mut list.dirs[seq as usize * list.dir_len..(seq as usize + 1) * list.dir_len];
            let b = self.chunks.pop(dir, len);
            list.seqs[seq as usize].blocks -= 1;
            if list.seqs[seq as usize].leased_until != u64::MAX {
                self.count_lease(b, false);
            }
            self.drop_ref(s, b);
            // The block must not refer to a sequence index that is reused.
            let block = &mut self.blocks[b];
            if block.home == s && block.seq == seq {
                block.seq = NONE;
            }
        }
    }

    /// Return whether a sequence is a lease, or a lease of it is in progress.
    pub(crate) fn is_leased(&self, s: u16, seq: SeqId) -> bool {
        self.live_seq(s, seq).is_some_and(|q| q.leased_until != u64::MAX)
    }

    pub(crate) fn is_copied(&self, s: u16, seq: SeqId) -> bool {
        let copying = &self.session(s).ops;
        copying.copying.iter(&copying.recs).any(|op| copying[op].seq == seq)
    }
}

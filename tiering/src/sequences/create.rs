//! Creation and removal of sequences.

use super::Seq;
use crate::api::{BlockId, NONE, SeqId, Status};
use crate::space::Core;

impl Core {
    /// Return a sequence of the session if it exists.
    pub(crate) fn live_seq(&self, s: u16, seq: SeqId) -> Option<&Seq> {
        self.sessions[usize::from(s)].seqs.get(seq as usize).filter(|q| q.live)
    }

    pub(crate) fn seq_mut(&mut self, s: u16, seq: SeqId) -> &mut Seq {
        &mut self.sessions[usize::from(s)].seqs[seq as usize]
    }

    /// Return the block at an index that the caller checked.
    pub(crate) fn seq_block(&self, s: u16, seq: SeqId, index: u32) -> BlockId {
        self.chunks.get(self.sessions[usize::from(s)].dir(seq), index)
    }

    pub(crate) fn seq_create(&mut self, s: u16, seq: SeqId) -> Status {
        match self.sessions[usize::from(s)].seqs.get_mut(seq as usize) {
            None => Status::Range,
            Some(q) if q.live || q.busy != 0 => Status::State,
            Some(q) => {
                *q = Seq { live: true, priority: super::NEUTRAL_PRIORITY, ..Seq::default() };
                Status::Ok
            }
        }
    }

    pub(crate) fn seq_drop(&mut self, s: u16, seq: SeqId) -> Status {
        if self.live_seq(s, seq).is_none() {
            return Status::NotFound;
        }
        self.end_ops_of(s, seq);
        self.release_all(s, seq);
        self.forget_due(s, seq);
        self.sessions[usize::from(s)].scheduled.forget(seq);
        self.untrack(s, seq);
        self.drop_tail(s, seq, 0);
        let session = &mut self.sessions[usize::from(s)];
        session.leases -= u32::from(session.seqs[seq as usize].is_lease());
        session.seqs[seq as usize] = Seq::default();
        Status::Ok
    }

    /// Append a block with a reference that is already counted. The caller checked that it fits.
    pub(crate) fn append_block(&mut self, s: u16, seq: SeqId, b: BlockId) -> bool {
        let session = &mut self.sessions[usize::from(s)];
        let len = session.seqs[seq as usize].blocks;
        let dir = &mut session.dirs[seq as usize * session.dir_len..(seq as usize + 1) * session.dir_len];
        if len >= self.cfg.limits.seq_blocks_max || !self.chunks.push(dir, len, b) {
            return false;
        }
        session.seqs[seq as usize].blocks += 1;
        if self.blocks[b].home == s {
            self.blocks[b].seq = seq;
        }
        true
    }

    /// Append a word that is not a block of the sequence yet. The caller checked that it fits.
    pub(crate) fn append_word(&mut self, s: u16, seq: SeqId, word: u32) -> bool {
        let session = &mut self.sessions[usize::from(s)];
        let len = session.seqs[seq as usize].blocks;
        let dir = &mut session.dirs[seq as usize * session.dir_len..(seq as usize + 1) * session.dir_len];
        let pushed = self.chunks.push(dir, len, word);
        session.seqs[seq as usize].blocks += u32::from(pushed);
        pushed
    }

    /// Remove words that are not blocks from the end of the list until `keep` are left.
    pub(crate) fn forget_words(&mut self, s: u16, seq: SeqId, keep: u32) {
        while self.sessions[usize::from(s)].seqs[seq as usize].blocks > keep {
            let session = &mut self.sessions[usize::from(s)];
            let len = session.seqs[seq as usize].blocks;
            let dir = &mut session.dirs[seq as usize * session.dir_len..(seq as usize + 1) * session.dir_len];
            self.chunks.pop(dir, len);
            session.seqs[seq as usize].blocks -= 1;
        }
    }

    pub(crate) fn set_seq_word(&mut self, s: u16, seq: SeqId, index: u32, word: u32) {
        let dir = self.sessions[usize::from(s)].dir(seq);
        self.chunks.set(dir, index, word);
    }

    /// Return whether a sequence's list can grow by `more` blocks.
    pub(crate) fn list_fits(&self, s: u16, seq: SeqId, more: u32) -> bool {
        let len = self.sessions[usize::from(s)].seqs[seq as usize].blocks;
        len.checked_add(more).is_some_and(|sum| sum <= self.cfg.limits.seq_blocks_max)
            && super::Chunks::needed(len, more) <= self.chunks.free_chunks()
    }

    /// Drop the blocks from index `keep` on, deepest first, so that a prefix outlives its descendants.
    pub(crate) fn drop_tail(&mut self, s: u16, seq: SeqId, keep: u32) {
        while self.sessions[usize::from(s)].seqs[seq as usize].blocks > keep {
            let session = &mut self.sessions[usize::from(s)];
            let len = session.seqs[seq as usize].blocks;
            let dir = &mut session.dirs[seq as usize * session.dir_len..(seq as usize + 1) * session.dir_len];
            let b = self.chunks.pop(dir, len);
            session.seqs[seq as usize].blocks -= 1;
            if session.seqs[seq as usize].leased_until != u64::MAX {
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
}

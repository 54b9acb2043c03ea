//! Blocks of a cached prefix join a sequence or a lease.

use crate::api::{BlockId, NONE, SeqId};
use crate::disk::{DiskTier, Why};
use crate::mutants::{self, Mutant};
use crate::tables::index::ShardCopy;

impl DiskTier {
    pub(crate) fn lease_block(&mut self, s: u16, (seq, i): (SeqId, u32), (c, b): (u32, BlockId)) {
        self.set_seq_word(s, seq, i, b);
        self.set_depth(b, i);
        let (hash, shard) = (self.index.hash(c), self.block(b).shard);
        self.touch_entry(hash, shard);
        self.index.begin_use(c);
        self.counters.nvme_hits += u64::from(self.is_far(b));
        self.add_ref(s, b);
        self.count_lease(b, true);
        self.persist(b, Why::Attached);
        self.touch_block(s, b, seq);
    }

    /// Append the longest cached prefix with complete windows; return its length in blocks.
    pub(crate) fn attach_cached(&mut self, s: u16, seq: SeqId, hashes: &[u128]) -> u32 {
        let start = self.lists(s).seqs[seq as usize].blocks();
        let mut above = match start {
            0 => NONE,
            _ => self.block(self.seq_block(s, seq, start - 1)).entry,
        };
        let shard = self.session(s).shard;
        self.index.warm(hashes);
        for (i, &hash) in hashes.iter().enumerate() {
            let Some(c) = self.index.find(hash) else {
                if mutants::on(Mutant::AttachSkipsParent) {
                    continue;
                }
                break;
            };
            let parent = self.index.parent(c);
            // Only the first block of a later call may have a parent that is not cached.
            let chained = parent == above || (i == 0 && start > 0 && above == NONE);
            let whole = self.index.is_whole(c);
            let shard = if mutants::on(Mutant::AttachWrongShard) { (shard + 1) % self.cfg().shards } else { shard };
            let copy = self.copy_of(c, shard).filter(|_| whole && (chained || mutants::on(Mutant::AttachSkipsParent)));
            if !self.list_fits(s, seq, 1) {
                break;
            }
            let b = match copy {
                None | Some(ShardCopy::End) => break,
                Some(ShardCopy::Block(b)) => b,
                Some(ShardCopy::IndexOnly(at)) => match self.give_block(c, at) {
                    Some(b) => b,
                    None => break,
                },
            };
            if !self.append_block(s, seq, b) {
                break;
            }
            self.set_depth(b, start + i as u32);
            self.touch_entry(hash, shard);
            self.index.begin_use(c);
            self.counters.nvme_hits += u64::from(self.is_far(b));
            self.add_ref(s, b);
            self.persist(b, Why::Attached);
            self.touch_block(s, b, seq);
            above = c;
        }
        let mut len = self.lists(s).seqs[seq as usize].blocks();
        while len > start && !self.windows_whole(s, seq, len) {
            len -= 1;
        }
        self.drop_tail(s, seq, len);
        len - start
    }
}

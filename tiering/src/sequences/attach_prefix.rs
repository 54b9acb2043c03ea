//! Attach prefix: attaches a cached prefix to a sequence.

use super::publish::HASHES_MAX;
use crate::actions::ActionBuf;
use crate::api::{BlockId, NONE, SeqId, Status};
use crate::mutants::{self, Mutant};
use crate::pages::ShardCopy;
use crate::requests::{Op, Phase, Work};
use crate::space::{Admit, Core, Who, Why};

impl Core {
    pub(crate) fn attach_prefix(&mut self, who: Who, seq: SeqId, hashes: &[u128], asked: Option<u32>, due: u64) {
        let s = who.session;
        let Some(&q) = self.live_seq(s, seq) else { return self.complete(who, Status::NotFound, 0) };
        if q.parked || q.busy != 0 || q.tokens != u64::from(q.blocks) * self.geo.page_tokens {
            return self.complete(who, Status::State, 0);
        }
        if hashes.len() > HASHES_MAX {
            return self.complete(who, Status::Limit, 0);
        }
        let op = Op {
            work: Work::AttachPrefix,
            seq,
            first: q.blocks,
            tokens: q.tokens,
            looked_up: asked.is_none(),
            ..Op::default()
        };
        let Some(op) = self.new_op(who, op, due) else { return };
        self.count_asked(s, asked.unwrap_or(0));
        let found = self.attach_cached(s, seq, hashes);
        if asked.is_some() {
            self.count_miss(s, hashes, found);
        }
        let ops = &mut self.sessions[usize::from(s)].ops;
        ops[op].count = found;
        ops.enter(op, Phase::Admission);
        let page_tokens = self.geo.page_tokens;
        let q = self.seq_mut(s, seq);
        q.busy = op + 1;
        q.tokens = u64::from(q.blocks) * page_tokens;
    }

    /// Append the longest cached prefix with complete windows; return its length in blocks.
    fn attach_cached(&mut self, s: u16, seq: SeqId, hashes: &[u128]) -> u32 {
        let start = self.sessions[usize::from(s)].seqs[seq as usize].blocks;
        let mut above = match start {
            0 => NONE,
            _ => self.blocks[self.seq_block(s, seq, start - 1)].entry,
        };
        let shard = self.sessions[usize::from(s)].shard;
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
            let shard = if mutants::on(Mutant::AttachWrongShard) { (shard + 1) % self.cfg.shards } else { shard };
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
            self.blocks[b].depth = start + i as u32;
            self.touch_entry(hash, shard);
            self.index.begin_use(c);
            self.counters.nvme_hits += u64::from(self.is_far(b));
            self.add_ref(s, b);
            self.persist(b, Why::Attached);
            self.touch_block(s, b, seq);
            above = c;
        }
        let mut len = self.sessions[usize::from(s)].seqs[seq as usize].blocks;
        while len > start && !self.windows_whole(s, seq, len) {
            len -= 1;
        }
        self.drop_tail(s, seq, len);
        len - start
    }

    pub(crate) fn touch_block(&mut self, s: u16, b: BlockId, seq: SeqId) {
        if self.blocks[b].home == s {
            self.blocks[b].seq = seq;
        }
        if self.blocks[b].slot != NONE {
            self.sessions[usize::from(s)].seqs[seq as usize].disk = Some(self.disk.disk_of(self.blocks[b].slot));
        }
        self.counters.blocks_attached += 1;
    }

    /// Return whether a sequence of `blocks` full blocks has every window page that its next token reads.
    pub(crate) fn windows_whole(&self, s: u16, seq: SeqId, blocks: u32) -> bool {
        let tokens = u64::from(blocks) * self.geo.page_tokens;
        self.geo.windowed.iter().all(|&plane| {
            // The next token is the reader: its window begins one token later.
            (self.geo.first_needed(plane, tokens) as u32..blocks).all(|index| {
                let page = self.geo.page(self.seq_block(s, seq, index), plane);
                !self.pages[page as usize].out_of_window()
            })
        })
    }

    /// Admit the attached blocks if host memory can hold them; otherwise shorten the prefix.
    pub(crate) fn admit_attach_prefix(&mut self, s: u16, op: u32) -> Admit {
        loop {
            // Blocks that were other sessions' own no longer count for their guarantees.
            let mut decision = if self.ids_suffice(0) { Admit::Yes } else { Admit::No(Status::NoSpace) };
            for class in 0..self.geo.classes.len() as u8 {
                if decision == Admit::Yes && !self.host.fits(class, 0) {
                    decision = self.admit_host(class, 1, 0);
                    if decision != Admit::Yes {
                        break;
                    }
                }
            }
            let Admit::No(status) = decision else { return decision };
            let rec = self.sessions[usize::from(s)].ops[op];
            if rec.count == 0 {
                return Admit::No(status);
            }
            // A shorter prefix must be readable too: its own windows and snapshot may be gone.
            let mut count = rec.count - 1;
            while count > 0 && !self.windows_whole(s, rec.seq, rec.first + count) {
                count -= 1;
            }
            self.drop_tail(s, rec.seq, rec.first + count);
            self.sessions[usize::from(s)].ops[op].count = count;
            self.seq_mut(s, rec.seq).tokens = u64::from(rec.first + count) * self.geo.page_tokens;
            if count == 0 {
                // A prefix was cached, and none of it fits.
                return Admit::No(Status::NoSpace);
            }
        }
    }

    pub(crate) fn complete_attach_prefix(&mut self, s: u16, op: u32, buf: &mut ActionBuf) -> (Status, u64) {
        let rec = self.sessions[usize::from(s)].ops[op];
        for index in rec.first..rec.first + rec.count {
            buf.push_word(self.seq_block(s, rec.seq, index));
        }
        let tokens = u64::from(rec.first + rec.count) * self.geo.page_tokens;
        let q = self.seq_mut(s, rec.seq);
        (q.busy, q.tokens) = (0, tokens);
        if rec.count > 0 {
            self.announce_used(s, rec.seq, rec.first + rec.count);
        }
        self.count_attached(s, rec.seq, (rec.first, rec.count), rec.looked_up);
        (Status::Ok, u64::from(rec.count))
    }
}

//! Attach prefix: attaches a cached prefix to a sequence.

use crate::actions::ActionBuf;
use crate::api::{SeqId, Status};
use crate::disk::{Admit, HASHES_MAX};
use crate::paging::Paging;
use crate::sessions::{AttachPrefix, Phase, Who};

impl Paging<'_> {
    pub(crate) fn attach_prefix(&mut self, who: Who, seq: SeqId, hashes: &[u128], asked: Option<u32>, due: u64) {
        let s = who.session;
        let Some(&q) = self.live_seq(s, seq) else { return self.complete(who, Status::NotFound, 0) };
        if q.parked || q.busy != 0 || q.tokens != u64::from(q.blocks()) * self.geo().page_tokens {
            return self.complete(who, Status::State, 0);
        }
        if hashes.len() > HASHES_MAX {
            return self.complete(who, Status::Limit, 0);
        }
        let attach = AttachPrefix { first: q.blocks(), count: 0, tokens: q.tokens, looked_up: asked.is_none() };
        let Some(op) = self.new_op(who, seq, attach, due) else { return };
        self.count_asked(s, asked.unwrap_or(0));
        let found = self.attach_cached(s, seq, hashes);
        if asked.is_some() {
            self.count_miss(s, hashes, found);
        }
        self.set_work(s, op, AttachPrefix { count: found, ..attach });
        self.enter(s, op, Phase::Admission);
        let page_tokens = self.geo().page_tokens;
        let q = self.seq_mut(s, seq);
        q.busy = op + 1;
        q.tokens = u64::from(q.blocks()) * page_tokens;
    }

    /// Admit the attached blocks if host memory can hold them; otherwise shorten the prefix.
    pub(crate) fn admit_attach_prefix(&mut self, s: u16, op: u32, attach: AttachPrefix) -> Admit {
        let AttachPrefix { first, mut count, .. } = attach;
        let seq = self.op(s, op).seq;
        loop {
            // Blocks that were other sessions' own no longer count for their guarantees.
            let mut decision = if self.ids_suffice(0) { Admit::Yes } else { Admit::No(Status::NoSpace) };
            for class in 0..self.geo().classes.len() as u8 {
                if decision == Admit::Yes && !self.host.fits(class, 0) {
                    decision = self.admit_host(class, 1, 0);
                    if decision != Admit::Yes {
                        break;
                    }
                }
            }
            let Admit::No(status) = decision else { return decision };
            if count == 0 {
                return Admit::No(status);
            }
            // A shorter prefix must be readable too: its own windows and snapshot may be gone.
            count -= 1;
            while count > 0 && !self.windows_whole(s, seq, first + count) {
                count -= 1;
            }
            self.drop_tail(s, seq, first + count);
            self.set_work(s, op, AttachPrefix { count, ..attach });
            let tokens = u64::from(first + count) * self.geo().page_tokens;
            self.seq_mut(s, seq).tokens = tokens;
            if count == 0 {
                // A prefix was cached, and none of it fits.
                return Admit::No(Status::NoSpace);
            }
        }
    }

    pub(crate) fn complete_attach_prefix(
        &mut self,
        s: u16,
        seq: SeqId,
        AttachPrefix { first, count, looked_up, .. }: AttachPrefix,
        buf: &mut ActionBuf,
    ) -> (Status, u64) {
        for index in first..first + count {
            buf.push_word(self.seq_block(s, seq, index));
        }
        let tokens = u64::from(first + count) * self.geo().page_tokens;
        let q = self.seq_mut(s, seq);
        (q.busy, q.tokens) = (0, tokens);
        if count > 0 {
            self.announce_used(s, seq, first + count);
        }
        self.count_attached(s, seq, (first, count), looked_up);
        (Status::Ok, u64::from(count))
    }

    /// Undo a failed attach: remove the attached blocks.
    pub(crate) fn undo_attach_prefix(&mut self, s: u16, seq: SeqId, attach: AttachPrefix) {
        self.drop_tail(s, seq, attach.first);
        let q = self.seq_mut(s, seq);
        (q.tokens, q.busy) = (attach.tokens, 0);
    }
}

//! Commit: makes tokens final, seals the pages that they fill, and advances windows.

use crate::api::{BlockId, NONE, SeqId, Status};
use crate::blocks::{BlockState, FrameState};
use crate::mutants::{self, Mutant};
use crate::paging::Paging;

/// Maximum number of blocks that one commit checks for pages out of window.
const DISCARD_MAX: u32 = 64;

impl Paging<'_> {
    pub(crate) fn commit(&mut self, s: u16, seq: SeqId, tokens: u64) -> Status {
        let Some(&q) = self.live_seq(s, seq) else { return Status::NotFound };
        if q.parked || tokens < q.tokens || tokens.div_ceil(self.geo().page_tokens) > u64::from(q.blocks()) {
            return Status::State;
        }
        let clock = self.tier0(s).clock;
        let before = q.tokens / self.geo().page_tokens;
        let mut after = tokens / self.geo().page_tokens;
        if mutants::on(Mutant::CommitSealsPartialPage) {
            after = tokens.div_ceil(self.geo().page_tokens);
        }
        for index in before..after {
            let b = self.seq_block(s, seq, index as u32);
            self.seal(s, b);
        }
        let q = self.seq_mut(s, seq);
        (q.tokens, q.stamp) = (tokens, clock);
        if after > before && !self.geo().windowed.is_empty() {
            self.discard_out_of_window(s, seq);
        }
        Status::Ok
    }

    /// Seal a block: it never changes again, so its frames may be written back and then evicted.
    pub(crate) fn seal(&mut self, s: u16, b: BlockId) {
        if self.block(b).state != BlockState::Unsealed {
            return;
        }
        self.count_unsealed(s, false);
        self.set_sealed(b);
        for page in self.pages_of(b) {
            if let Some(f) = self.find_copy(page, s) {
                self.refresh(s, f);
            }
            self.settle_page(page);
        }
    }

    /// Discard pages of window and state planes that the sequence will not read again, unless other references exist.
    fn discard_out_of_window(&mut self, s: u16, seq: SeqId) {
        let q = self.lists(s).seqs[seq as usize];
        let early = u64::from(mutants::on(Mutant::WindowDiscardedEarly));
        let firsts = |core: &Paging<'_>, plane| core.geo().first_needed(plane, q.tokens) + early;
        let windowed = self.geo().windowed.len();
        let (mut least, mut most) = (u64::MAX, 0);
        for i in 0..windowed {
            let first = firsts(self, self.geo().windowed[i]);
            (least, most) = (least.min(first), most.max(first));
        }
        let mut done_to = q.discard_from;
        let end = most.min(u64::from(q.blocks())).min(u64::from(q.discard_from) + u64::from(DISCARD_MAX)) as u32;
        for index in q.discard_from..end {
            let b = self.seq_block(s, seq, index);
            let block = self.block(b);
            if block.entry == NONE && block.refs() == 1 && block.state == BlockState::Sealed {
                for i in 0..windowed {
                    let plane = self.geo().windowed[i];
                    if u64::from(index) < firsts(self, plane) {
                        self.discard_page(b, plane);
                    }
                }
            } else if block.entry == NONE {
                // Other references exist: a later commit checks the block again.
                continue;
            }
            if index == done_to && u64::from(index) < least {
                done_to = index + 1;
            }
        }
        self.seq_mut(s, seq).discard_from = done_to;
    }

    fn discard_page(&mut self, b: BlockId, plane: u16) {
        let page = self.geo().page(b, plane);
        let state = *self.page(page);
        if state.out_of_window() || state.lost() || state.loads > 0 || state.copying_out() {
            return;
        }
        // Sessions that read the block before may still show the page.
        let (mut s, mut f) = (state.session, state.frame);
        while f != NONE {
            let frame = self.frame(s, f);
            if frame.state != FrameState::Present || frame.job != NONE || frame.pins > 0 {
                return;
            }
            (s, f) = (frame.copy_session, frame.copy_frame);
        }
        while self.page(page).frame != NONE {
            let (s, f) = (self.page(page).session, self.page(page).frame);
            self.evict(s, f);
        }
        self.drop_host_copy(page);
        let class = self.geo().class_of(plane);
        self.uncharge_page(b, class);
        self.leave_window(page);
        self.settle_host(page);
        self.counters.pages_discarded += 1;
    }
}

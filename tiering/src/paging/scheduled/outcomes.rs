//! Outcome of loads for queued sequences: known when they are resumed, or when the page is evicted before that.

use crate::api::SeqId;
use crate::blocks::FrameState;
use crate::paging::Paging;

impl Paging<'_> {
    /// Count, for an expected sequence that is resumed, the pages that were loaded in time, late, or not at all.
    pub(crate) fn count_outcomes(&mut self, s: u16, seq: SeqId) {
        let q = self.lists(s).seqs[seq as usize];
        if q.due_us == 0 {
            return;
        }
        for plane in 0..self.geo().planes.len() as u16 {
            let (sinks, from) = self.walked(s, &q, plane);
            for index in (self.geo().first_needed(plane, q.tokens) as u32).min(q.blocks())..q.blocks() {
                let page = self.geo().page(self.seq_block(s, seq, index), plane);
                let state = *self.page(page);
                let Some(f) = self.find_copy(page, s) else {
                    let must = index < sinks || index >= from;
                    self.counters.scheduled_late += u64::from(state.reading());
                    self.counters.scheduled_missed += u64::from(must && !state.reading() && state.below());
                    continue;
                };
                let (brought, there) = (self.take_scheduled(s, f), self.frame(s, f).state == FrameState::Present);
                self.counters.scheduled_used += u64::from(brought && there);
                self.counters.scheduled_late += u64::from(brought && !there);
            }
        }
    }
}

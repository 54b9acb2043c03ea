//! Acquire and release pin and unpin ranges in tier 0. Advise passes hints of the engine about future use.

use crate::actions::ActionBuf;
use crate::api::{Advice, IoClass, NONE, SeqId, Status};
use crate::blocks::{BlockState, NewJob, On};
use crate::counters::Reason;
use crate::host::{Take, Want};
use crate::mutants::{self, Mutant};
use crate::paging::{Next, Paging};
use crate::sessions::{Acquire, Op, Phase, Pin, Task, Who, Work};

/// Number of pages of the range that an acquire loads at a time, beginning with the one that it waits for.
const AHEAD: u32 = 16;

/// Maximum number of pages that one advice changes: it is only a hint.
const ADVICE_PAGES_MAX: u64 = 1 << 16;

impl Paging<'_> {
    fn pin_range(&self, s: u16, range: Pin) -> Result<(), Status> {
        let q = self.live_seq(s, range.seq).ok_or(Status::NotFound)?;
        let planes_end = usize::from(range.plane) + usize::from(range.planes);
        let end = u64::from(range.first) + u64::from(range.count);
        if range.planes == 0 || range.count == 0 {
            return Err(Status::Invalid);
        }
        if planes_end > self.geo().planes.len() || end > u64::from(q.blocks()) {
            return Err(Status::Range);
        }
        // A prefix that is being attached may become shorter.
        let attaching = q.busy != 0 && matches!(self.op(s, q.busy - 1).work, Work::AttachPrefix(_));
        if q.parked || attaching { Err(Status::State) } else { Ok(()) }
    }

    /// Return the page at position `i` of a range: planes within blocks.
    fn range_page(&self, s: u16, range: &Pin, i: u32) -> u32 {
        let planes = u32::from(range.planes);
        let b = self.seq_block(s, range.seq, range.first + i / planes);
        self.geo().page(b, range.plane + (i % planes) as u16)
    }

    pub(crate) fn acquire(&mut self, who: Who, range: Pin, due: u64) {
        let s = who.session;
        if let Err(status) = self.pin_range(s, range).and_then(|()| self.pins_fit(s, range)) {
            return self.complete(who, status, 0);
        }
        if let Some(op) = self.new_op(who, range.seq, Acquire { range, pinned: 0 }, due) {
            self.promise(s, &range, 0, true);
            self.enter(s, op, Phase::Frames);
        }
    }

    /// Check that the range can be pinned in addition to the pages that must stay already.
    fn pins_fit(&self, s: u16, range: Pin) -> Result<(), Status> {
        let mut all = [0u64; crate::CLASSES_MAX];
        for plane in range.plane..range.plane + range.planes {
            all[usize::from(self.geo().class_of(plane))] += u64::from(range.count);
        }
        for (class, c) in self.tier0(s).classes.iter().enumerate() {
            if all[class] > c.room() {
                return Err(Status::TooBig);
            }
        }
        let acquiring = self
            .session(s)
            .ops
            .recs
            .iter()
            .filter(|o| o.phase != Phase::Free && matches!(o.work, Work::Acquire(_)))
            .count();
        if self.pagers[s].pins.len() + acquiring >= self.cfg().limits.requests_max as usize {
            return Err(Status::Limit);
        }
        let mut more = [0u64; crate::CLASSES_MAX];
        for i in 0..range.count * u32::from(range.planes) {
            let page = self.range_page(s, &range, i);
            let state = *self.page(page);
            if state.lost() || state.out_of_window() {
                return Err(Status::Lost);
            }
            let stays = self.block(self.geo().block_of(page)).state == BlockState::Unsealed
                || self.find_copy(page, s).is_some_and(|f| self.frame(s, f).pins > 0);
            more[usize::from(self.geo().class_of_page(page))] += u64::from(!stays);
        }
        let full = self.tier0(s).classes.iter().enumerate().any(|(i, c)| c.held() + more[i] > c.room());
        if full { Err(Status::NoSpace) } else { Ok(()) }
    }

    /// Pin the next page of a range, or load it and the following ones.
    pub(crate) fn acquire_next(&mut self, s: u16, op: u32, acquire: Acquire, buf: &mut ActionBuf) -> Next {
        let Acquire { range, pinned } = acquire;
        let len = range.count * u32::from(range.planes);
        if pinned == len {
            return Next::AllSent;
        }
        let page = self.range_page(s, &range, pinned);
        let present = self.present(page, s);
        if present.is_some_and(|f| self.in_mapped_frame(s, f)) {
            // Acquired pages must be in tier 0: code other than kvtide's kernels may read them.
            for i in pinned..len.min(pinned + AHEAD) {
                let page = self.range_page(s, &range, i);
                self.present(page, s).inspect(|&f| self.unmap_frame(s, f));
            }
            return Next::Stalled;
        }
        if let Some(f) = present {
            if !mutants::on(Mutant::AcquireWithoutPin) {
                self.pin(s, f);
            }
            self.set_work(s, op, Acquire { pinned: pinned + 1, ..acquire });
            let class = self.geo().class_of_page(page);
            if !mutants::on(Mutant::PinPromiseKept) {
                self.commit_pin(s, class, false);
            }
            return Next::Sent;
        }
        for i in pinned..len.min(pinned + AHEAD) {
            let page = self.range_page(s, &range, i);
            if self.find_copy(page, s).is_some() || self.must_wait(s, page) {
                continue;
            }
            let state = *self.page(page);
            if state.lost() || state.out_of_window() {
                self.fail_op(s, op, Status::Lost);
                return Next::Over;
            }
            if !self.can_send(s, buf) {
                break;
            }
            if self.only_on_disk(page) {
                let planes = (range.plane, range.plane + range.planes);
                let want = Want { class: IoClass::Demand, reason: Reason::Request, take: Take::Any, planes };
                self.read_in(page, want, buf);
                continue;
            }
            if state.host == NONE {
                self.fetch_from_elsewhere(page, buf);
                continue;
            }
            let Some(pick) = self.pick_any(s, self.geo().class_of_page(page)) else { break };
            self.place(s, pick, NewJob { task: Task::CopyIn, page, reason: Reason::Request, op, source: NONE }, buf);
        }
        Next::Stalled
    }

    /// Complete an acquire after all its pages are pinned.
    pub(crate) fn acquired(&mut self, s: u16, op: u32, range: Pin) {
        self.pagers[s].pins.push(range);
        self.finish_plain(s, op, Status::Ok);
    }

    /// Unpin the pages of a failed acquire.
    pub(crate) fn undo_acquire(&mut self, s: u16, Acquire { range, pinned }: Acquire) {
        self.promise(s, &range, pinned, false);
        self.unpin_pages(s, &range, pinned);
    }

    /// Count the pages of a range from position `from` on as pages to be pinned, or stop counting them. Concurrent acquires must
    /// all be able to complete.
    fn promise(&mut self, s: u16, range: &Pin, from: u32, add: bool) {
        let planes = u32::from(range.planes);
        for i in from..range.count * planes {
            let class = self.geo().class_of(range.plane + (i % planes) as u16);
            self.commit_pin(s, class, add);
        }
    }

    fn unpin_pages(&mut self, s: u16, range: &Pin, pages: u32) {
        for i in 0..pages {
            let page = self.range_page(s, range, i);
            if let Some(f) = self.present(page, s).filter(|_| !mutants::on(Mutant::AcquireWithoutPin)) {
                self.unpin(s, f);
            }
        }
    }

    pub(crate) fn release(&mut self, s: u16, range: Pin) -> Status {
        if self.live_seq(s, range.seq).is_none() {
            return Status::NotFound;
        }
        let Some(at) = self.pagers[s].pins.iter().position(|&p| p == range) else {
            return Status::State;
        };
        self.pagers[s].pins.swap_remove(at);
        self.unpin_pages(s, &range, range.count * u32::from(range.planes));
        Status::Ok
    }

    /// Release all acquired ranges of a sequence that is dropped.
    pub(crate) fn release_all(&mut self, s: u16, seq: SeqId) {
        while let Some(at) = self.pagers[s].pins.iter().position(|p| p.seq == seq) {
            let range = self.pagers[s].pins.swap_remove(at);
            self.unpin_pages(s, &range, range.count * u32::from(range.planes));
        }
    }

    /// Return whether blocks of the sequence from `index` on are acquired, or an acquire of them is in progress.
    pub(crate) fn pinned_from(&self, s: u16, seq: SeqId, index: u64) -> bool {
        let reaches = |p: &Pin| p.seq == seq && u64::from(p.first) + u64::from(p.count) > index;
        let acquires =
            |o: &Op| o.phase != Phase::Free && matches!(o.work, Work::Acquire(acquire) if reaches(&acquire.range));
        self.pagers[s].pins.iter().any(reaches) || self.session(s).ops.recs.iter().any(acquires)
    }

    pub(crate) fn advise(&mut self, s: u16, seq: SeqId, first: u32, count: u32, advice: Advice) -> Status {
        let Some(&q) = self.live_seq(s, seq) else { return Status::NotFound };
        let end = u64::from(first) + u64::from(count);
        if end > u64::from(q.blocks()) {
            return Status::Range;
        }
        let end = end as u32;
        match advice {
            Advice::WillNeed => self.schedule_advised(s, seq, first, end),
            Advice::DontNeed => self.evict_range_first(s, seq, first, end, false),
            Advice::Cold => self.evict_range_first(s, seq, first, end, true),
            Advice::Sequential => self.seq_mut(s, seq).sequential = true,
            Advice::Priority(p) => self.seq_mut(s, seq).priority = p,
            Advice::Remaining(NONE) => self.seq_mut(s, seq).ends_at = u64::MAX,
            Advice::Remaining(tokens) => self.seq_mut(s, seq).ends_at = q.tokens.saturating_add(tokens.into()),
        }
        Status::Ok
    }

    /// Evict the range's pages first, deepest first; `early`: also write them back at once.
    fn evict_range_first(&mut self, s: u16, seq: SeqId, first: u32, end: u32, early: bool) {
        let mut left = ADVICE_PAGES_MAX;
        for index in (first..end).rev() {
            for page in self.pages_of(self.seq_block(s, seq, index)) {
                left = left.saturating_sub(1);
                if left == 0 {
                    return;
                }
                let Some(f) = self.present(page, s) else { continue };
                self.evict_first(s, f);
                if early && self.frame(s, f).on == On::Dirty {
                    self.unlist(s, f);
                    self.enlist(s, f, On::Early, crate::blocks::NO_LANE);
                }
            }
        }
    }
}

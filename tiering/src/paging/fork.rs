//! Fork and truncate: the two requests that copy blocks.
//!
//! Sealed blocks are shared. The agent copies the committed part of an unsealed block, in lane order. It also copies a sealed block
//! that contains a cut, because other sequences may refer to it. The source is referenced until every copy of it has ended, even if
//! its sequence is dropped.

use crate::actions::ActionBuf;
use crate::api::{BlockId, Contract, IoClass, NONE, PlaneKind, SeqId, Status};
use crate::blocks::{BlockState, Chunks, FrameState, NewJob};
use crate::counters::Reason;
use crate::disk::Admit;
use crate::host::{Take, Want};
use crate::mutants::{self, Mutant};
use crate::paging::{Next, Paging};
use crate::sessions::{Fork, Phase, TailCopy, Task, Truncate, Who};

/// Nothing is copied.
const NO_COPY: TailCopy = TailCopy { source: NONE, next: (NONE, 0) };

impl Paging<'_> {
    pub(crate) fn fork(&mut self, who: Who, parent: SeqId, child: SeqId, due: u64) {
        let s = who.session;
        let Some(&q) = self.live_seq(s, parent) else { return self.complete(who, Status::NotFound, 0) };
        let refused = match self.lists(s).seqs.get(child as usize) {
            None => Some(Status::Range),
            Some(c) if c.is_live() || c.busy != 0 || q.parked || q.busy != 0 => Some(Status::State),
            Some(_) => None,
        };
        if let Some(status) = refused {
            return self.complete(who, status, 0);
        }
        let fork = Fork { child, tokens: q.tokens, shared: 0, copy: NO_COPY };
        if let Some(op) = self.new_op(who, parent, fork, due) {
            self.seq_mut(s, child).busy = op + 1;
            self.enter(s, op, Phase::Admission);
        }
    }

    /// Admit a fork if there is capacity: the child refers to the shared blocks from now on.
    pub(crate) fn admit_fork(&mut self, s: u16, op: u32, fork: Fork) -> Admit {
        let (seq, Fork { child, tokens, .. }) = (self.op(s, op).seq, fork);
        let parent = self.lists(s).seqs[seq as usize];
        let shared = (tokens / self.geo().page_tokens) as u32;
        let tail = u32::from(!tokens.is_multiple_of(self.geo().page_tokens));
        if parent.blocks() < shared + tail || parent.parked {
            // Truncated or parked while the fork waited.
            return Admit::No(Status::State);
        }
        if Chunks::needed(0, shared + tail) > self.chunks().free_chunks() {
            return Admit::No(Status::Limit);
        }
        match self.admit_copies(s, tail) {
            Admit::Yes => {}
            other => return other,
        }
        let page_tokens = self.geo().page_tokens;
        let q = self.begin_seq(s, child);
        q.busy = op + 1;
        (q.discard_from, q.priority) = (parent.discard_from, parent.priority);
        (q.ends_at, q.contract) = (parent.ends_at, parent.contract);
        if matches!(parent.contract, Contract::Approx { .. }) {
            self.track(s, child);
        }
        for index in 0..shared {
            self.share_block(s, seq, child, index);
        }
        self.seq_mut(s, child).tokens = u64::from(shared) * page_tokens;
        let mut copy = NO_COPY;
        if tail == 1 {
            if mutants::on(Mutant::ForkSharesTail) {
                self.share_block(s, seq, child, shared);
            } else {
                let source = self.seq_block(s, seq, shared);
                copy = self.start_copy(s, op, source);
            }
        }
        self.set_work(s, op, Fork { shared, copy, ..fork });
        Admit::Yes
    }

    fn share_block(&mut self, s: u16, parent: SeqId, child: SeqId, index: u32) {
        let b = self.seq_block(s, parent, index);
        if self.append_block(s, child, b) && !mutants::on(Mutant::ForkWithoutReference) {
            self.add_ref(s, b);
        }
    }

    fn admit_copies(&mut self, s: u16, copies: u32) -> Admit {
        match self.admit_ids(s, copies) {
            Admit::Yes => self.admit(s, u64::from(copies), u64::from(copies)),
            other => other,
        }
    }

    /// Start to copy a block into a new one.
    fn start_copy(&mut self, s: u16, op: u32, source: BlockId) -> TailCopy {
        let copy = self.new_block(s, op);
        self.add_in_flight(source);
        TailCopy { source, next: (copy.unwrap_or(NONE), 0) }
    }

    /// Release the source of a copy.
    pub(crate) fn end_copy(&mut self, copy: TailCopy) {
        if copy.source != NONE {
            self.remove_in_flight(copy.source);
        }
    }

    /// Copy the next page of a fork.
    pub(crate) fn fork_next(&mut self, s: u16, op: u32, fork: Fork, buf: &mut ActionBuf) -> Next {
        let (next, copy) = self.copy_next(s, op, fork.copy, buf);
        if let Some(copy) = copy {
            self.set_work(s, op, Fork { copy, ..fork });
        }
        next
    }

    /// Copy the next page of a truncate.
    pub(crate) fn truncate_next(&mut self, s: u16, op: u32, truncate: Truncate, buf: &mut ActionBuf) -> Next {
        let (next, copy) = self.copy_next(s, op, truncate.copy, buf);
        if let Some(copy) = copy {
            self.set_work(s, op, Truncate { copy, ..truncate });
        }
        next
    }

    /// Copy the next page of an op's source block. Return what is left to copy if a job was sent.
    fn copy_next(&mut self, s: u16, op: u32, copy: TailCopy, buf: &mut ActionBuf) -> (Next, Option<TailCopy>) {
        let (block, plane) = copy.next;
        if block == NONE {
            return (Next::AllSent, None);
        }
        if !self.can_send(s, buf) {
            return (Next::Stalled, None);
        }
        let page = self.geo().page(block, plane);
        let from = self.geo().page(copy.source, plane);
        let state = *self.page(from);
        let new = NewJob { task: Task::Install, page, reason: Reason::Copy, op, source: NONE };
        let (new, pinned) = match self.find_copy(from, s) {
            Some(f) if self.in_mapped_frame(s, f) && self.frame(s, f).state == FrameState::Present => {
                (NewJob { task: Task::CopyInAs, source: from, ..new }, None)
            }
            Some(f) if self.frame(s, f).state == FrameState::Present => {
                (NewJob { task: Task::Copy, source: f, ..new }, Some(f))
            }
            Some(_) => return (Next::Stalled, None),
            None if state.host != NONE => (NewJob { task: Task::CopyInAs, source: from, ..new }, None),
            // Out of window: the copy's page is never read either.
            None if state.out_of_window() => (new, None),
            None if state.lost() => {
                self.fail_op(s, op, Status::Lost);
                return (Next::Over, None);
            }
            None if state.on_disk() => {
                let planes = (plane, self.geo().planes.len() as u16);
                let want = Want { class: IoClass::Demand, reason: Reason::Copy, take: Take::Any, planes };
                self.read_in(from, want, buf);
                return (Next::Stalled, None);
            }
            None => {
                self.fetch_from_elsewhere(from, buf);
                return (Next::Stalled, None);
            }
        };
        // The pin keeps the copy from taking the frame of its source.
        pinned.inspect(|&f| self.pin(s, f));
        let pick = self.pick_any(s, self.geo().class_of(plane));
        if let Some(pick) = pick {
            self.place(s, pick, new, buf);
        }
        pinned.inspect(|&f| self.unpin(s, f));
        match pick {
            Some(_) => (Next::Sent, Some(TailCopy { next: self.next_in_chain(copy.next), ..copy })),
            None => (Next::Stalled, None),
        }
    }

    /// Complete a fork: append the copies to the child and write their ids.
    pub(crate) fn complete_fork(&mut self, s: u16, op: u32, fork: Fork, buf: &mut ActionBuf) -> (Status, u64) {
        self.end_copy(fork.copy);
        self.set_work(s, op, Fork { copy: NO_COPY, ..fork });
        while let Some(b) = self.pop_chain(s, op) {
            if !self.append_block(s, fork.child, b) {
                self.drop_ref(s, b);
                self.undo_op(s, op);
                return (Status::Limit, 0);
            }
            buf.push_word(b);
        }
        let child = self.seq_mut(s, fork.child);
        (child.tokens, child.busy) = (fork.tokens, 0);
        (Status::Ok, u64::from(fork.shared))
    }

    /// Undo a failed fork: remove the child.
    pub(crate) fn undo_fork(&mut self, s: u16, fork: Fork) {
        self.end_copy(fork.copy);
        self.untrack(s, fork.child);
        self.drop_tail(s, fork.child, 0);
        self.end_seq(s, fork.child);
    }

    pub(crate) fn truncate(&mut self, who: Who, seq: SeqId, tokens: u64, due: u64) {
        let s = who.session;
        let Some(&q) = self.live_seq(s, seq) else { return self.complete(who, Status::NotFound, 0) };
        let keep = tokens.div_ceil(self.geo().page_tokens);
        if keep > u64::from(q.blocks()) {
            return self.complete(who, Status::Range, 0);
        }
        let keep = keep as u32;
        if q.parked || q.busy != 0 {
            return self.complete(who, Status::State, 0);
        }
        if self.pinned_from(s, seq, tokens / self.geo().page_tokens) {
            return self.complete(who, Status::Busy, 0);
        }
        if self.window_gone(s, seq, tokens, keep) {
            return self.complete(who, Status::Lost, 0);
        }
        let inside = !tokens.is_multiple_of(self.geo().page_tokens)
            && self.block(self.seq_block(s, seq, keep - 1)).state == BlockState::Sealed
            && !mutants::on(Mutant::TruncateWithoutCopy);
        if !inside {
            self.cut(s, seq, tokens, keep);
            return self.complete(who, Status::Ok, u64::from(keep));
        }
        if let Some(op) = self.new_op(who, seq, Truncate { tokens, keep, copy: NO_COPY }, due) {
            self.seq_mut(s, seq).busy = op + 1;
            self.enter(s, op, Phase::Admission);
        }
    }

    /// Return whether pages that a sequence of length `tokens` reads were discarded as out of window.
    fn window_gone(&self, s: u16, seq: SeqId, tokens: u64, keep: u32) -> bool {
        // A window also needs the page that contains the cut. A snapshot does not: it cannot be rewound into the middle of a block.
        let whole = (tokens / self.geo().page_tokens).min(u64::from(keep)) as u32;
        self.geo().windowed.iter().any(|&plane| {
            let state = self.geo().planes[usize::from(plane)].kind == PlaneKind::State;
            let end = if state { whole } else { keep };
            (self.geo().first_needed(plane, tokens) as u32..end).any(|index| {
                let page = self.geo().page(self.seq_block(s, seq, index), plane);
                self.page(page).out_of_window()
            })
        })
    }

    fn cut(&mut self, s: u16, seq: SeqId, tokens: u64, keep: u32) {
        self.drop_tail(s, seq, keep);
        let first = self.geo().windowed.iter().map(|&p| self.geo().first_needed(p, tokens)).min().unwrap_or(0);
        let q = self.seq_mut(s, seq);
        q.tokens = q.tokens.min(tokens);
        q.discard_from = q.discard_from.min(first as u32);
        self.end_faults_beyond(s, seq, keep);
    }

    fn end_faults_beyond(&mut self, s: u16, seq: SeqId, keep: u32) {
        self.each_fault(s, |paging, op, fault| {
            if paging.op(s, op).seq == seq && fault.index >= keep {
                paging.finish_plain(s, op, Status::NotFound);
            }
        });
    }

    pub(crate) fn admit_truncate(&mut self, s: u16, op: u32, truncate: Truncate) -> Admit {
        match self.admit_copies(s, 1) {
            Admit::Yes => {}
            other => return other,
        }
        let seq = self.op(s, op).seq;
        let source = self.seq_block(s, seq, truncate.keep - 1);
        let copy = self.start_copy(s, op, source);
        self.set_work(s, op, Truncate { copy, ..truncate });
        Admit::Yes
    }

    /// Complete a truncate: replace the block that contains the cut by the copy, and write its id.
    pub(crate) fn complete_truncate(
        &mut self,
        s: u16,
        op: u32,
        Truncate { tokens, keep, copy }: Truncate,
        buf: &mut ActionBuf,
    ) -> (Status, u64) {
        let seq = self.op(s, op).seq;
        self.end_copy(copy);
        self.cut(s, seq, tokens, keep - 1);
        while let Some(b) = self.pop_chain(s, op) {
            // It fits: a block was removed just before.
            self.append_block(s, seq, b);
            buf.push_word(b);
        }
        let q = self.seq_mut(s, seq);
        (q.tokens, q.busy) = (tokens, 0);
        (Status::Ok, u64::from(keep))
    }
}

//! Fork and truncate: the two requests that copy blocks.
//!
//! Sealed blocks are shared. The agent copies the committed part of an unsealed block, in lane order. It also copies a sealed block
//! that contains a cut, because other sequences may refer to it. The source is referenced until every copy of it has ended, even if
//! its sequence is dropped.

use crate::actions::ActionBuf;
use crate::api::{BlockId, Contract, IoClass, NONE, PlaneKind, SeqId, Status};
use crate::blocks::{BlockState, Chunks, FrameState, NewJob, Seq};
use crate::counters::Reason;
use crate::disk::Admit;
use crate::host::{Take, Want};
use crate::mutants::{self, Mutant};
use crate::paging::{Next, Paging};
use crate::sessions::{Op, Phase, Task, Who, Work};

impl Paging<'_> {
    pub(crate) fn fork(&mut self, who: Who, parent: SeqId, child: SeqId, due: u64) {
        let s = who.session;
        let Some(&q) = self.live_seq(s, parent) else { return self.complete(who, Status::NotFound, 0) };
        let refused = match self.lists[s].seqs.get(child as usize) {
            None => Some(Status::Range),
            Some(c) if c.live || c.busy != 0 || q.parked || q.busy != 0 => Some(Status::State),
            Some(_) => None,
        };
        if let Some(status) = refused {
            return self.complete(who, status, 0);
        }
        let op = Op { work: Work::Fork, seq: parent, child, tokens: q.tokens, at: NONE, ..Op::default() };
        if let Some(op) = self.new_op(who, op, due) {
            self.seq_mut(s, child).busy = op + 1;
            self.sessions[s].ops.enter(op, Phase::Admission);
        }
    }

    /// Admit a fork if there is capacity: the child refers to the shared blocks from now on.
    pub(crate) fn admit_fork(&mut self, s: u16, op: u32) -> Admit {
        let rec = self.sessions[s].ops[op];
        let parent = self.lists[s].seqs[rec.seq as usize];
        let shared = (rec.tokens / self.geo.page_tokens) as u32;
        let tail = u32::from(!rec.tokens.is_multiple_of(self.geo.page_tokens));
        if parent.blocks < shared + tail || parent.parked {
            // Truncated or parked while the fork waited.
            return Admit::No(Status::State);
        }
        if Chunks::needed(0, shared + tail) > self.chunks.free_chunks() {
            return Admit::No(Status::Limit);
        }
        match self.admit_copies(s, tail) {
            Admit::Yes => {}
            other => return other,
        }
        *self.seq_mut(s, rec.child) = Seq {
            live: true,
            busy: op + 1,
            discard_from: parent.discard_from,
            priority: parent.priority,
            ends_at: parent.ends_at,
            contract: parent.contract,
            ..Seq::default()
        };
        if matches!(parent.contract, Contract::Approx { .. }) {
            self.track(s, rec.child);
        }
        for index in 0..shared {
            self.share_block(s, rec.seq, rec.child, index);
        }
        self.seq_mut(s, rec.child).tokens = u64::from(shared) * self.geo.page_tokens;
        self.sessions[s].ops[op].first = shared;
        if tail == 1 {
            if mutants::on(Mutant::ForkSharesTail) {
                self.share_block(s, rec.seq, rec.child, shared);
            } else {
                let source = self.seq_block(s, rec.seq, shared);
                self.start_copy(s, op, source);
            }
        }
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

    fn start_copy(&mut self, s: u16, op: u32, source: BlockId) {
        let copy = self.new_block(s, op);
        self.add_in_flight(source);
        let ops = &mut self.sessions[s].ops;
        ops[op].source = source;
        ops[op].at = copy.unwrap_or(NONE);
    }

    /// Copy the next page of an op's source block.
    pub(crate) fn copy_next(&mut self, s: u16, op: u32, buf: &mut ActionBuf) -> Next {
        let rec = self.sessions[s].ops[op];
        if rec.at == NONE {
            return Next::AllSent;
        }
        if !self.can_send(s, buf) {
            return Next::Stalled;
        }
        let page = self.geo.page(rec.at, rec.at_plane);
        let from = self.geo.page(rec.source, rec.at_plane);
        let state = self.pages[from as usize];
        let new = NewJob { task: Task::Install, page, reason: Reason::Copy, op, source: NONE };
        let (new, pinned) = match self.find_copy(from, s) {
            Some(f) if self.in_mapped_frame(s, f) && self.frame(s, f).state == FrameState::Present => {
                (NewJob { task: Task::CopyInAs, source: from, ..new }, None)
            }
            Some(f) if self.frame(s, f).state == FrameState::Present => {
                (NewJob { task: Task::Copy, source: f, ..new }, Some(f))
            }
            Some(_) => return Next::Stalled,
            None if state.host != NONE => (NewJob { task: Task::CopyInAs, source: from, ..new }, None),
            // Out of window: the copy's page is never read either.
            None if state.out_of_window() => (new, None),
            None if state.lost() => {
                self.fail_op(s, op, Status::Lost);
                return Next::Over;
            }
            None if state.on_disk() => {
                let planes = (rec.at_plane, self.geo.planes.len() as u16);
                let want = Want { class: IoClass::Demand, reason: Reason::Copy, take: Take::Any, planes };
                self.read_in(from, want, buf);
                return Next::Stalled;
            }
            None => {
                self.fetch_from_elsewhere(from, buf);
                return Next::Stalled;
            }
        };
        // The pin keeps the copy from taking the frame of its source.
        pinned.inspect(|&f| self.pin(s, f));
        let pick = self.pick_any(s, self.geo.class_of(rec.at_plane));
        if let Some(pick) = pick {
            self.place(s, pick, new, buf);
            self.step_op(s, op);
        }
        pinned.inspect(|&f| self.unpin(s, f));
        if pick.is_some() { Next::Sent } else { Next::Stalled }
    }

    /// Complete a fork: append the copies to the child and write their ids.
    pub(crate) fn complete_fork(&mut self, s: u16, op: u32, buf: &mut ActionBuf) -> (Status, u64) {
        let rec = self.sessions[s].ops[op];
        self.end_copy(s, op);
        while let Some(b) = self.pop_chain(s, op) {
            if !self.append_block(s, rec.child, b) {
                self.drop_ref(s, b);
                self.undo_op(s, op);
                return (Status::Limit, 0);
            }
            buf.push_word(b);
        }
        let child = self.seq_mut(s, rec.child);
        (child.tokens, child.busy) = (rec.tokens, 0);
        (Status::Ok, u64::from(rec.first))
    }

    pub(crate) fn truncate(&mut self, who: Who, seq: SeqId, tokens: u64, due: u64) {
        let s = who.session;
        let Some(&q) = self.live_seq(s, seq) else { return self.complete(who, Status::NotFound, 0) };
        let keep = tokens.div_ceil(self.geo.page_tokens);
        if keep > u64::from(q.blocks) {
            return self.complete(who, Status::Range, 0);
        }
        let keep = keep as u32;
        if q.parked || q.busy != 0 {
            return self.complete(who, Status::State, 0);
        }
        if self.pinned_from(s, seq, tokens / self.geo.page_tokens) {
            return self.complete(who, Status::Busy, 0);
        }
        if self.window_gone(s, seq, tokens, keep) {
            return self.complete(who, Status::Lost, 0);
        }
        let inside = !tokens.is_multiple_of(self.geo.page_tokens)
            && self.blocks[self.seq_block(s, seq, keep - 1)].state == BlockState::Sealed
            && !mutants::on(Mutant::TruncateWithoutCopy);
        if !inside {
            self.cut(s, seq, tokens, keep);
            return self.complete(who, Status::Ok, u64::from(keep));
        }
        let op = Op { work: Work::Truncate, seq, first: keep, tokens, ..Op::default() };
        if let Some(op) = self.new_op(who, op, due) {
            self.seq_mut(s, seq).busy = op + 1;
            self.sessions[s].ops.enter(op, Phase::Admission);
        }
    }

    /// Return whether pages that a sequence of length `tokens` reads were discarded as out of window.
    fn window_gone(&self, s: u16, seq: SeqId, tokens: u64, keep: u32) -> bool {
        // A window also needs the page that contains the cut. A snapshot does not: it cannot be rewound into the middle of a block.
        let whole = (tokens / self.geo.page_tokens).min(u64::from(keep)) as u32;
        self.geo.windowed.iter().any(|&plane| {
            let state = self.geo.planes[usize::from(plane)].kind == PlaneKind::State;
            let end = if state { whole } else { keep };
            (self.geo.first_needed(plane, tokens) as u32..end).any(|index| {
                let page = self.geo.page(self.seq_block(s, seq, index), plane);
                self.pages[page as usize].out_of_window()
            })
        })
    }

    fn cut(&mut self, s: u16, seq: SeqId, tokens: u64, keep: u32) {
        self.drop_tail(s, seq, keep);
        let first = self.geo.windowed.iter().map(|&p| self.geo.first_needed(p, tokens)).min().unwrap_or(0);
        let q = self.seq_mut(s, seq);
        q.tokens = q.tokens.min(tokens);
        q.discard_from = q.discard_from.min(first as u32);
        self.end_faults_beyond(s, seq, keep);
    }

    fn end_faults_beyond(&mut self, s: u16, seq: SeqId, keep: u32) {
        let mut op = self.sessions[s].ops.faults.head;
        while op != NONE {
            let rec = self.sessions[s].ops[op];
            if rec.seq == seq && rec.first >= keep {
                self.finish_plain(s, op, Status::NotFound);
            }
            op = rec.links.next;
        }
    }

    pub(crate) fn admit_truncate(&mut self, s: u16, op: u32) -> Admit {
        match self.admit_copies(s, 1) {
            Admit::Yes => {}
            other => return other,
        }
        let rec = self.sessions[s].ops[op];
        let source = self.seq_block(s, rec.seq, rec.first - 1);
        self.start_copy(s, op, source);
        Admit::Yes
    }

    /// Complete a truncate: replace the block that contains the cut by the copy, and write its id.
    pub(crate) fn complete_truncate(&mut self, s: u16, op: u32, buf: &mut ActionBuf) -> (Status, u64) {
        let rec = self.sessions[s].ops[op];
        self.end_copy(s, op);
        self.cut(s, rec.seq, rec.tokens, rec.first - 1);
        while let Some(b) = self.pop_chain(s, op) {
            // It fits: a block was removed just before.
            self.append_block(s, rec.seq, b);
            buf.push_word(b);
        }
        let q = self.seq_mut(s, rec.seq);
        (q.tokens, q.busy) = (rec.tokens, 0);
        (Status::Ok, u64::from(rec.first))
    }
}

//! Park and resume: an idle sequence leaves tier 0, including its unsealed tail, and comes back.
//!
//! A parked block's pages are written back and evicted like sealed ones. Park writes the unsealed pages back and frees their
//! frames. Sealed pages without another reference become the first to be evicted. Resume loads the unsealed pages and drops their
//! host copies, because the next token makes those stale. A park that fails leaves the sequence partly parked; resume undoes it.

use crate::actions::ActionBuf;
use crate::api::{IoClass, NONE, SeqId, Status};
use crate::blocks::{BlockState, FrameState, NewJob};
use crate::counters::Reason;
use crate::disk::Admit;
use crate::host::{For, Take, Want};
use crate::mutants::{self, Mutant};
use crate::paging::{Next, Paging};
use crate::sessions::{Op, Park, Phase, Resume, Task, Who, Work};

/// Maximum number of pages that one call checks for a park.
const LEAVE_MAX: u32 = 1024;

impl Paging<'_> {
    pub(crate) fn park(&mut self, who: Who, seq: SeqId, due_us: u64, deadline: u64) {
        let s = who.session;
        let Some(&q) = self.live_seq(s, seq) else { return self.complete(who, Status::NotFound, 0) };
        let parking = q.busy != 0 && matches!(self.op(s, q.busy - 1).work, Work::Park(_));
        if q.parked && (q.busy == 0 || parking) {
            // Only the due time changes.
            self.expect_back(s, seq, due_us);
            return self.complete(who, Status::Ok, 0);
        }
        if q.parked || q.busy != 0 {
            return self.complete(who, Status::State, 0);
        }
        if self.pinned_from(s, seq, 0) {
            return self.complete(who, Status::Busy, 0);
        }
        let Some(op) = self.new_op(who, seq, Park { left: (q.blocks(), 0) }, deadline) else { return };
        self.enter(s, op, Phase::Parking);
        let q = self.seq_mut(s, seq);
        (q.parked, q.busy) = (true, op + 1);
        self.let_leave(s, seq, true);
        self.expect_back(s, seq, due_us);
    }

    /// Return the index of the first unsealed block; unsealed blocks are the last ones.
    fn first_unsealed(&self, s: u16, seq: SeqId) -> u32 {
        let mut index = self.lists(s).seqs[seq as usize].blocks();
        while index > 0 && self.block(self.seq_block(s, seq, index - 1)).state == BlockState::Unsealed {
            index -= 1;
        }
        index
    }

    /// Allow the unsealed blocks to leave tier 0, or require them to stay there again.
    fn let_leave(&mut self, s: u16, seq: SeqId, parked: bool) {
        let blocks = self.lists(s).seqs[seq as usize].blocks();
        for index in self.first_unsealed(s, seq)..blocks {
            let b = self.seq_block(s, seq, index);
            if self.block(b).parked == parked {
                // A reserve that was in progress when its sequence was parked appended the block: it never left tier 0.
                continue;
            }
            self.set_parked(b, parked);
            self.count_unsealed(s, !parked);
            for page in self.pages_of(b) {
                self.settle_page(page);
            }
        }
    }

    /// Continue every park: deepest block first, pages written back, then evicted. Return false if one checked its
    /// maximum number of pages and must be continued in the next call.
    pub(crate) fn issue_parks(&mut self, s: u16, buf: &mut ActionBuf) -> bool {
        let mut op = self.session(s).ops.parking.head;
        let mut all = true;
        while op != NONE {
            let next = self.op(s, op).links.next;
            all &= self.leave(s, op, buf);
            op = next;
        }
        all
    }

    /// Continue one park. Return false if it stopped only because it had checked the maximum number of pages.
    fn leave(&mut self, s: u16, op: u32, buf: &mut ActionBuf) -> bool {
        for _ in 0..LEAVE_MAX {
            let Op { seq, pending, work: Work::Park(Park { left: (left, plane) }), .. } = *self.op(s, op) else {
                return true;
            };
            if left == 0 {
                if pending == 0 {
                    self.left(s, op);
                }
                return true;
            }
            let b = self.seq_block(s, seq, left - 1);
            let page = self.geo().page(b, plane);
            if !self.leave_page(s, op, b, page, buf) {
                return true;
            }
            let last = usize::from(plane) + 1 == self.geo().planes.len();
            let left = if last { (left - 1, 0) } else { (left, plane + 1) };
            self.set_work(s, op, Park { left });
        }
        false
    }

    /// Process one page of a park; return false if it must wait.
    fn leave_page(&mut self, s: u16, op: u32, b: u32, page: u32, buf: &mut ActionBuf) -> bool {
        let Some(f) = self.present(page, s) else { return !self.is_moving(page, s) };
        let alone = self.block(b).refs() == 1;
        if self.block(b).state == BlockState::Sealed {
            if alone {
                self.evict_first(s, f);
            }
            return true;
        }
        if self.page(page).below() || self.page(page).copying_out() {
            return true;
        }
        if !self.can_send_last(s, buf) {
            return false;
        }
        if self.copy_out(s, f, Reason::Park, op, For::Waiting, buf) {
            return true;
        }
        let class = self.geo().class_of_page(page);
        if self.host.usable(class) == 0 && !self.host.is_asked(class) && !self.are_frames_coming(class) {
            // Other classes hold all host memory.
            self.fail_op(s, op, Status::NoSpace);
        }
        false
    }

    /// Complete a park: all unsealed pages are in host, so free their frames.
    fn left(&mut self, s: u16, op: u32) {
        let seq = self.op(s, op).seq;
        let blocks = self.lists(s).seqs[seq as usize].blocks();
        for index in self.first_unsealed(s, seq)..blocks {
            for page in self.pages_of(self.seq_block(s, seq, index)) {
                let Some(f) = self.present(page, s) else { continue };
                let frame = self.frame(s, f);
                if self.page(page).below() && frame.job == NONE && frame.pins == 0 {
                    self.evict(s, f);
                }
            }
        }
        self.seq_mut(s, seq).busy = 0;
        self.finish_plain(s, op, Status::Ok);
    }

    pub(crate) fn resume(&mut self, who: Who, seq: SeqId, due: u64) {
        let s = who.session;
        let Some(&q) = self.live_seq(s, seq) else { return self.complete(who, Status::NotFound, 0) };
        if !q.parked || q.busy != 0 {
            return self.complete(who, Status::State, 0);
        }
        if let Some(op) = self.new_op(who, seq, Resume::default(), due) {
            self.count_outcomes(s, seq);
            self.forget_due(s, seq);
            self.seq_mut(s, seq).busy = op + 1;
            self.enter(s, op, Phase::Admission);
        }
    }

    pub(crate) fn admit_resume(&mut self, s: u16, op: u32) -> Admit {
        let seq = self.op(s, op).seq;
        let first = self.first_unsealed(s, seq);
        let blocks = self.lists(s).seqs[seq as usize].blocks();
        match self.admit(s, 0, u64::from(blocks - first)) {
            Admit::Yes => {}
            other => return other,
        }
        self.let_leave(s, seq, false);
        self.set_work(s, op, Resume { next: (first, 0), started: true });
        Admit::Yes
    }

    /// Load the next page of a resumed tail.
    pub(crate) fn resume_next(&mut self, s: u16, op: u32, resume: Resume, buf: &mut ActionBuf) -> Next {
        let (seq, (index, plane)) = (self.op(s, op).seq, resume.next);
        if index >= self.lists(s).seqs[seq as usize].blocks() {
            return if self.tail_is_read(s, seq) { Next::Stalled } else { Next::AllSent };
        }
        let page = self.geo().page(self.seq_block(s, seq, index), plane);
        match self.find_copy(page, s) {
            Some(f) if self.frame(s, f).state == FrameState::Present && self.frame(s, f).job == NONE => {}
            Some(_) => return Next::Stalled,
            None if self.only_on_disk(page) => {
                let planes = (plane, self.geo().planes.len() as u16);
                let want = Want { class: IoClass::Demand, reason: Reason::Request, take: Take::Any, planes };
                self.read_in(page, want, buf);
                return Next::Stalled;
            }
            None if self.page(page).host == NONE => {
                self.fail_op(s, op, Status::Lost);
                return Next::Over;
            }
            None => {
                if !self.can_send(s, buf) || self.must_wait(s, page) {
                    return Next::Stalled;
                }
                let Some(pick) = self.pick_any(s, self.geo().class_of_page(page)) else { return Next::Stalled };
                self.place(
                    s,
                    pick,
                    NewJob { task: Task::CopyIn, page, reason: Reason::Request, op, source: NONE },
                    buf,
                );
            }
        }
        let last = usize::from(plane) + 1 == self.geo().planes.len();
        let next = if last { (index + 1, 0) } else { (index, plane + 1) };
        self.set_work(s, op, Resume { next, ..resume });
        Next::Sent
    }

    /// Return whether a copy of the tail from host, requested before the park, is still in progress. Its host copies cannot be
    /// dropped until then.
    fn tail_is_read(&self, s: u16, seq: SeqId) -> bool {
        let blocks = self.lists(s).seqs[seq as usize].blocks();
        let mut tail = self.first_unsealed(s, seq)..blocks;
        tail.any(|index| self.pages_of(self.seq_block(s, seq, index)).any(|p| self.page(p).loads > 0))
    }

    /// Complete a resume: the tail is writable again. Its copies in host and on disk become stale with the next token.
    pub(crate) fn resumed(&mut self, s: u16, op: u32) {
        let seq = self.op(s, op).seq;
        if self.tail_is_read(s, seq) {
            return self.enter(s, op, Phase::Frames);
        }
        let blocks = self.lists(s).seqs[seq as usize].blocks();
        for index in self.first_unsealed(s, seq)..blocks {
            for page in self.pages_of(self.seq_block(s, seq, index)) {
                if !mutants::on(Mutant::StaleHostCopy) {
                    self.drop_host_copy(page);
                }
                self.forget_disk_copy(page);
            }
        }
        let q = self.seq_mut(s, seq);
        (q.parked, q.busy) = (false, 0);
        self.finish_plain(s, op, Status::Ok);
    }

    /// Undo a failed resume: the sequence is parked as before.
    pub(crate) fn undo_resume(&mut self, s: u16, seq: SeqId, resume: Resume) {
        if resume.started {
            self.let_leave(s, seq, true);
        }
        self.seq_mut(s, seq).busy = 0;
    }
}

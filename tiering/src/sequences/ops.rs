//! Phases of pending requests, independent of their kind.

use crate::actions::ActionBuf;
use crate::api::{Action, FeedEvent, NONE, SeqId, Status};
use crate::block_api::LEASE_WORDS;
use crate::requests::{Op, Phase, Work};
use crate::sequences::Seq;
use crate::space::{Admit, Core, Who, why_not_stored};

/// Progress of an op that takes frames.
pub(crate) enum Next {
    /// One more job was sent, or one more page needed none.
    Sent,
    /// It waits for a frame, a job entry, room or a page.
    Stalled,
    /// All jobs are sent.
    AllSent,
    /// It ended.
    Over,
}

impl Core {
    /// Register a pending request. `None`: no entry was free, and the request completed with `Again`.
    pub(crate) fn new_op(&mut self, who: Who, op: Op, due_us: u64) -> Option<u32> {
        let s = usize::from(who.session);
        let op = Op { channel: who.channel, tag: who.tag, due_us, ..op };
        let Some(i) = self.sessions[s].ops.alloc(op) else {
            self.complete(who, Status::Again, 0);
            return None;
        };
        let sessions = &mut self.sessions;
        self.deadlines.push((due_us, who.session, i), |(_, s, op), at| sessions[usize::from(s)].ops[op].due_at = at);
        Some(i)
    }

    /// End an op after its deadline passed.
    pub(crate) fn time_out(&mut self, s: u16, op: u32) {
        self.counters.timed_out += 1;
        let rec = &self.sessions[usize::from(s)].ops[op];
        // A store that found no room in time: its blocks are not admitted.
        let no_room = rec.work == Work::Store && rec.phase == Phase::Admission;
        self.fail_op(s, op, if no_room { Status::NotAdmitted } else { Status::TimedOut });
        self.wake(s);
    }

    pub(crate) fn cancel(&mut self, s: u16, channel: u16, tag: u16) -> Status {
        let ops = &self.sessions[usize::from(s)].ops;
        let found = ops
            .recs
            .iter()
            .position(|o| !matches!(o.phase, Phase::Free | Phase::Ready) && o.channel == channel && o.tag == tag);
        let Some(op) = found else { return Status::NotFound };
        self.counters.canceled += 1;
        self.fail_op(s, op as u32, Status::Canceled);
        Status::Ok
    }

    /// End an op without success and release its resources.
    pub(crate) fn fail_op(&mut self, s: u16, op: u32, status: Status) {
        if matches!(self.sessions[usize::from(s)].ops[op].phase, Phase::Free) || self.end_copies(s, op, status) {
            return;
        }
        self.note_unstored(s, op, why_not_stored(status));
        self.undo_op(s, op);
        self.finish_plain(s, op, status);
        self.wake(s);
    }

    /// Release the resources of an op. Jobs in flight go on; their resources are released when they end.
    pub(crate) fn undo_op(&mut self, s: u16, op: u32) {
        while let Some(b) = self.pop_chain(s, op) {
            self.drop_ref(s, b);
        }
        self.end_copy(s, op);
        let rec = self.sessions[usize::from(s)].ops[op];
        match rec.work {
            Work::Fork => {
                self.untrack(s, rec.child);
                self.drop_tail(s, rec.child, 0);
                *self.seq_mut(s, rec.child) = Seq::default();
            }
            Work::AttachPrefix => {
                self.drop_tail(s, rec.seq, rec.first);
                let q = self.seq_mut(s, rec.seq);
                (q.tokens, q.busy) = (rec.tokens, 0);
            }
            Work::Truncate | Work::Park => self.seq_mut(s, rec.seq).busy = 0,
            Work::Resume => self.undo_resume(s, op),
            Work::Acquire => self.undo_acquire(s, op),
            Work::Resize => self.undo_resize(s, op),
            Work::Lease => self.undo_lease(s, rec.seq),
            Work::Load | Work::LoadHashed => self.undo_load(s, op),
            Work::Store => self.forget_copies(s, op),
            Work::Reserve
            | Work::Fault
            | Work::Declare
            | Work::Publish
            | Work::Guarantee
            | Work::Follow
            | Work::List => {}
        }
    }

    /// End all pending requests of a sequence that is dropped.
    pub(crate) fn end_ops_of(&mut self, s: u16, seq: SeqId) {
        for op in 0..self.sessions[usize::from(s)].ops.recs.len() as u32 {
            let rec = &self.sessions[usize::from(s)].ops[op];
            if rec.phase != Phase::Free && (rec.seq == seq || rec.child == seq) {
                self.fail_op(s, op, Status::NotFound);
            }
        }
    }

    /// Try to start the op at the head of the admission list. Return false if it continues to wait.
    pub(crate) fn try_admit(&mut self, s: u16, op: u32) -> bool {
        let decision = match self.sessions[usize::from(s)].ops[op].work {
            Work::Reserve => self.admit_reserve(s, op),
            Work::Fork => self.admit_fork(s, op),
            Work::Truncate => self.admit_truncate(s, op),
            Work::AttachPrefix => self.admit_attach_prefix(s, op),
            Work::Resume => self.admit_resume(s, op),
            Work::Resize => self.admit_resize(s, op),
            Work::Guarantee => self.admit_guarantee(s, op),
            Work::Lease => self.admit_lease(),
            Work::Store => self.admit_store(s, op),
            Work::Park
            | Work::Acquire
            | Work::Fault
            | Work::Declare
            | Work::Publish
            | Work::Load
            | Work::LoadHashed
            | Work::Follow
            | Work::List => Admit::Yes,
        };
        let work = self.sessions[usize::from(s)].ops[op].work;
        match decision {
            Admit::Yes if work == Work::Lease => self.sessions[usize::from(s)].ops.enter(op, Phase::Ready),
            Admit::Yes if work == Work::Store => self.sessions[usize::from(s)].ops.enter(op, Phase::Copying),
            Admit::Yes if work == Work::Resize => self.start_resize(s, op),
            Admit::Yes if work == Work::Guarantee => self.start_guarantee(s, op),
            Admit::No(Status::NoSpace) if work == Work::Guarantee => self.refuse_guarantee(s, op),
            Admit::Yes => self.sessions[usize::from(s)].ops.enter(op, Phase::Frames),
            Admit::No(status) => self.fail_op(s, op, status),
            Admit::Wait => {
                self.counters.stalls += 1;
                return false;
            }
        }
        true
    }

    /// Give frames to ops in the order of their admission. Only the first op takes frames, so that no op starves.
    pub(crate) fn issue_frames(&mut self, s: u16, buf: &mut ActionBuf) {
        loop {
            let op = self.sessions[usize::from(s)].ops.frames.head;
            if op == NONE {
                return;
            }
            let next = match self.sessions[usize::from(s)].ops[op].work {
                Work::Reserve => self.reserve_next(s, op, buf),
                Work::Fork | Work::Truncate => self.copy_next(s, op, buf),
                Work::Resume => self.resume_next(s, op, buf),
                Work::Acquire => self.acquire_next(s, op, buf),
                Work::AttachPrefix
                | Work::Park
                | Work::Fault
                | Work::Declare
                | Work::Publish
                | Work::Resize
                | Work::Guarantee
                | Work::Lease
                | Work::Load
                | Work::LoadHashed
                | Work::Store
                | Work::Follow
                | Work::List => Next::AllSent,
            };
            match next {
                Next::Sent | Next::Over => {}
                Next::Stalled => return,
                Next::AllSent if self.sessions[usize::from(s)].ops[op].pending == 0 => self.all_done(s, op),
                Next::AllSent => self.sessions[usize::from(s)].ops.enter(op, Phase::Jobs),
            }
        }
    }

    /// Continue an op that has no more to wait for.
    fn all_done(&mut self, s: u16, op: u32) {
        match self.sessions[usize::from(s)].ops[op].work {
            Work::Acquire => self.acquired(s, op),
            Work::Resume => self.resumed(s, op),
            _ => self.sessions[usize::from(s)].ops.enter(op, Phase::Ready),
        }
    }

    /// Record that a job of the op succeeded.
    pub(crate) fn op_job_done(&mut self, s: u16, op: u32, _page: u32) {
        let ops = &mut self.sessions[usize::from(s)].ops;
        ops[op].pending -= 1;
        if ops[op].pending == 0 && ops[op].phase == Phase::Jobs {
            self.all_done(s, op);
        }
    }

    /// End an op after one of its jobs failed permanently.
    pub(crate) fn op_job_failed(&mut self, s: u16, op: u32, status: Status) {
        self.sessions[usize::from(s)].ops[op].pending -= 1;
        let status = if matches!(status, Status::Invalid | Status::Io) { status } else { Status::Io };
        self.fail_op(s, op, status);
    }

    /// Complete a ready op, with its list. Return false if the list does not fit now.
    pub(crate) fn complete_op(&mut self, s: u16, op: u32, buf: &mut ActionBuf) -> bool {
        let rec = self.sessions[usize::from(s)].ops[op];
        let words = match rec.work {
            Work::Lease => LEASE_WORDS,
            Work::Load | Work::LoadHashed | Work::Store => rec.copies.len,
            Work::Follow => FeedEvent::WORDS as u32,
            Work::List => 2 * FeedEvent::WORDS as u32,
            _ => rec.blocks.len.max(rec.count),
        };
        if buf.words_room() < words as usize {
            return false;
        }
        self.retire_op(s, op);
        let start = buf.list_start();
        let (status, value) = match rec.work {
            Work::Reserve => self.complete_reserve(s, op, buf),
            Work::Fork => self.complete_fork(s, op, buf),
            Work::Truncate => self.complete_truncate(s, op, buf),
            Work::AttachPrefix => self.complete_attach_prefix(s, op, buf),
            Work::Declare => {
                buf.push_word(rec.at);
                (Status::Ok, 1)
            }
            Work::Lease => self.complete_lease(s, op, buf),
            Work::Load | Work::LoadHashed | Work::Store => self.complete_copies(s, op, buf),
            Work::Follow => self.complete_follow(rec.tokens, buf),
            Work::List => self.complete_list(rec.tokens, buf),
            // These complete without a list, in `finish_plain`.
            Work::Park
            | Work::Resume
            | Work::Acquire
            | Work::Fault
            | Work::Publish
            | Work::Resize
            | Work::Guarantee => (rec.status, 0),
        };
        let list = (start, buf.list_start() - start);
        let action = Action::Complete { session: s, channel: rec.channel, tag: rec.tag, status, value, list };
        self.counters.requests_failed += u64::from(status != Status::Ok);
        self.trace.fold(&action, buf.list(list));
        buf.push(action);
        true
    }
}

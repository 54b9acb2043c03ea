//! Phases of paging's pending requests, independent of their kind.

use crate::actions::ActionBuf;
use crate::api::{NONE, Status};
use crate::blocks::Seq;
use crate::mutants::{self, Mutant};
use crate::paging::Paging;
use crate::sessions::{Phase, Task, Work};

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

impl Paging<'_> {
    /// End an op without success and release its resources.
    pub(crate) fn fail_op(&mut self, s: u16, op: u32, status: Status) {
        if self.sessions[s].ops[op].phase == Phase::Free {
            return;
        }
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
        if mutants::on(Mutant::CancelFreesCopyOutTarget) {
            self.free_targets(s, op);
        }
        let rec = self.sessions[s].ops[op];
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
            _ => {}
        }
    }

    /// Continue an op that has no more to wait for.
    pub(crate) fn all_done(&mut self, s: u16, op: u32) {
        match self.sessions[s].ops[op].work {
            Work::Acquire => self.acquired(s, op),
            Work::Resume => self.resumed(s, op),
            _ => self.sessions[s].ops.enter(op, Phase::Ready),
        }
    }

    /// Record that a job of the op succeeded.
    pub(crate) fn op_job_done(&mut self, s: u16, op: u32, _page: u32) {
        let ops = &mut self.sessions[s].ops;
        ops[op].pending -= 1;
        if ops[op].pending == 0 && ops[op].phase == Phase::Jobs {
            self.all_done(s, op);
        }
    }

    /// End an op after one of its jobs failed permanently.
    pub(crate) fn op_job_failed(&mut self, s: u16, op: u32, status: Status) {
        self.sessions[s].ops[op].pending -= 1;
        let status = if matches!(status, Status::Invalid | Status::Io) { status } else { Status::Io };
        self.fail_op(s, op, status);
    }

    /// Give frames to ops in the order of their admission. Only the first op takes frames, so that no op starves.
    pub(crate) fn issue_frames(&mut self, s: u16, buf: &mut ActionBuf) {
        loop {
            let op = self.sessions[s].ops.frames.head;
            if op == NONE {
                return;
            }
            let next = match self.sessions[s].ops[op].work {
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
                Next::AllSent if self.sessions[s].ops[op].pending == 0 => self.all_done(s, op),
                Next::AllSent => self.sessions[s].ops.enter(op, Phase::Jobs),
            }
        }
    }

    /// Deliberate fault: free the host frames that the op's jobs in flight still write.
    fn free_targets(&mut self, s: u16, op: u32) {
        for job in 0..self.sessions[s].jobs.recs.len() as u32 {
            let job = self.sessions[s].jobs[job];
            if job.live && job.op == op && job.task == Task::CopyOut {
                self.host.free(job.host);
            }
        }
    }
}

//! Phases of paging's pending requests, independent of their kind.

use crate::actions::ActionBuf;
use crate::api::{NONE, Status};
use crate::mutants::{self, Mutant};
use crate::paging::Paging;
use crate::sessions::{Op, Phase, Task, Work};

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
        if self.op(s, op).phase == Phase::Free {
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
        if mutants::on(Mutant::CancelFreesCopyOutTarget) {
            self.free_targets(s, op);
        }
        let Op { seq, work, .. } = *self.op(s, op);
        match work {
            Work::Fork(fork) => self.undo_fork(s, fork),
            Work::AttachPrefix(attach) => self.undo_attach_prefix(s, seq, attach),
            Work::Truncate(truncate) => {
                self.end_copy(truncate.copy);
                self.seq_mut(s, seq).busy = 0;
            }
            Work::Park(_) => self.seq_mut(s, seq).busy = 0,
            Work::Resume(resume) => self.undo_resume(s, seq, resume),
            Work::Acquire(acquire) => self.undo_acquire(s, acquire),
            Work::Resize(resize) => self.undo_resize(s, op, resize),
            _ => {}
        }
    }

    /// Continue an op that has no more to wait for.
    pub(crate) fn all_done(&mut self, s: u16, op: u32) {
        match self.op(s, op).work {
            Work::Acquire(acquire) => self.acquired(s, op, acquire.range),
            Work::Resume(_) => self.resumed(s, op),
            _ => self.enter(s, op, Phase::Ready),
        }
    }

    /// Record that a job of the op succeeded.
    pub(crate) fn op_job_done(&mut self, s: u16, op: u32) {
        self.job_ends(s, op);
        if self.op(s, op).pending == 0 && self.op(s, op).phase == Phase::Jobs {
            self.all_done(s, op);
        }
    }

    /// End an op after one of its jobs failed permanently.
    pub(crate) fn op_job_failed(&mut self, s: u16, op: u32, status: Status) {
        self.job_ends(s, op);
        let status = if matches!(status, Status::Invalid | Status::Io) { status } else { Status::Io };
        self.fail_op(s, op, status);
    }

    /// Give frames to ops in the order of their admission. Only the first op takes frames, so that no op starves.
    pub(crate) fn issue_frames(&mut self, s: u16, buf: &mut ActionBuf) {
        loop {
            let op = self.session(s).ops.frames.head;
            if op == NONE {
                return;
            }
            let next = match self.op(s, op).work {
                Work::Reserve(reserve) => self.reserve_next(s, op, reserve, buf),
                Work::Fork(fork) => self.fork_next(s, op, fork, buf),
                Work::Truncate(truncate) => self.truncate_next(s, op, truncate, buf),
                Work::Resume(resume) => self.resume_next(s, op, resume, buf),
                Work::Acquire(acquire) => self.acquire_next(s, op, acquire, buf),
                _ => Next::AllSent,
            };
            match next {
                Next::Sent | Next::Over => {}
                Next::Stalled => return,
                Next::AllSent if self.op(s, op).pending == 0 => self.all_done(s, op),
                Next::AllSent => self.enter(s, op, Phase::Jobs),
            }
        }
    }

    /// Deliberate fault: free the host frames that the op's jobs in flight still write.
    fn free_targets(&mut self, s: u16, op: u32) {
        for job in 0..self.session(s).jobs.recs.len() as u32 {
            let job = *self.job(s, job);
            if job.live && job.op == op && job.task == Task::CopyOut {
                self.host.free(job.host);
            }
        }
    }
}

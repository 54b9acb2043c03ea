//! Pending requests and their completions, as actions.

use crate::actions::ActionBuf;
use crate::api::{Action, Level, NONE, Status};
use crate::error::Error;
use crate::mutants::{self, Mutant};
use crate::sessions::{Life, Phase, Sessions, Work};

/// Destination of a completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub session: u16,
    pub channel: u16,
    pub tag: u16,
}

impl Sessions {
    /// Register a pending request of a sequence, or of none. `None`: no entry was free, and the request completed with `Again`.
    pub(crate) fn new_op(&mut self, who: Who, seq: u32, work: impl Into<Work>, due_us: u64) -> Option<u32> {
        let Some(i) = self.sessions[who.session].ops.alloc(who, seq, work.into(), due_us) else {
            self.complete(who, Status::Again, 0);
            return None;
        };
        let sessions = &mut self.sessions;
        if mutants::on(Mutant::DeadlineForgotten) {
            return Some(i);
        }
        self.deadlines.push((due_us, who.session, i), |(_, s, op), at| sessions[s].ops[op].due_at = at);
        Some(i)
    }

    pub(crate) fn live(&self, session: u16) -> Result<(), Error> {
        match self.sessions.get(session) {
            Some(s) if s.life == Life::Live => Ok(()),
            _ => Err(Error::NoSession { session }),
        }
    }

    /// Send an action whose list is in the buffer.
    pub(crate) fn emit_listed(&mut self, action: Action, list: (u32, u32), buf: &mut ActionBuf) {
        self.trace.fold(&action, buf.list(list));
        buf.push(action);
    }

    pub(crate) fn emit(&mut self, action: Action, list: &[u32], buf: &mut ActionBuf) {
        self.trace.fold(&action, list);
        buf.push(action);
    }

    /// Complete a request without a list. The completion waits until there is room.
    pub(crate) fn complete(&mut self, who: Who, status: Status, value: u64) {
        self.counters.requests_failed += u64::from(status != Status::Ok);
        self.sessions[who.session].completions_waiting += 1;
        let Who { session, channel, tag } = who;
        self.actions_out.push_back(Action::Complete { session, channel, tag, status, value, list: (0, 0) });
    }

    /// Write the waiting actions to `buf`. Return true if all fitted.
    pub(crate) fn flush_actions(&mut self, buf: &mut ActionBuf) -> bool {
        while buf.room() > 0 {
            let Some(action) = self.actions_out.pop_front() else { return true };
            if let Action::Complete { session, .. } = action {
                let session = &mut self.sessions[session];
                session.completions_waiting = session.completions_waiting.saturating_sub(1);
            }
            self.emit(action, &[], buf);
        }
        self.actions_out.is_empty()
    }

    /// Remove a request's deadline and detach its jobs.
    pub(crate) fn retire_op(&mut self, s: u16, op: u32) {
        self.forget_deadline(s, op);
        let rec = self.sessions[s].ops[op];
        if rec.pending > 0 {
            let session = &mut self.sessions[s];
            session.ops[op].pending = 0;
            for job in session.jobs.recs.iter_mut().filter(|j| j.live && j.op == op) {
                job.op = NONE;
            }
        }
    }

    /// Remove a request's deadline.
    pub(crate) fn forget_deadline(&mut self, s: u16, op: u32) {
        let due_at = std::mem::replace(&mut self.sessions[s].ops[op].due_at, NONE);
        if due_at != NONE {
            let sessions = &mut self.sessions;
            self.deadlines.remove(due_at, |(_, s, op), at| sessions[s].ops[op].due_at = at);
        }
    }

    /// Complete a request with a completion without a list.
    pub(crate) fn finish_plain(&mut self, s: u16, op: u32, status: Status) {
        let rec = &self.sessions[s].ops[op];
        // A publish that waits for a flush is already stored.
        let stored = matches!(rec.work, Work::Publish(publish) if publish.flush > 0);
        self.finish_with(s, op, status, if stored { Level::Stored as u64 } else { 0 });
    }

    /// Like `finish_plain`, with a value.
    pub(crate) fn finish_with(&mut self, s: u16, op: u32, status: Status, value: u64) {
        self.retire_op(s, op);
        let rec = self.sessions[s].ops[op];
        self.complete(Who { session: s, channel: rec.channel, tag: rec.tag }, status, value);
        self.sessions[s].ops.enter(op, Phase::Free);
    }

    /// Return whether one more job can be planned for the session now.
    pub(crate) fn can_send(&self, s: u16, buf: &ActionBuf) -> bool {
        buf.room() > 0 && self.sessions[s].jobs.has_two_free()
    }

    /// Return the same for a job that assigns no frame to a page. It may use the last free record: it waits for no other job,
    /// while other jobs may wait for it.
    pub(crate) fn can_send_last(&self, s: u16, buf: &ActionBuf) -> bool {
        buf.room() > 0 && self.sessions[s].jobs.has_free()
    }
}

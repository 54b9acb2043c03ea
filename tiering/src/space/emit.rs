//! Conversion of completions and jobs to actions.

use super::{Core, Pick};
use crate::actions::ActionBuf;
use crate::api::{Action, FrameId, Job, Level, NONE, Status, Victim};
use crate::counters::Reason;
use crate::mutants::{self, Mutant};
use crate::pages::{FrameState, On};
use crate::requests::{Phase, Work};
use crate::sessions::{JobRec, Task};

/// Destination of a completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub session: u16,
    pub channel: u16,
    pub tag: u16,
}

/// Parameters of a job, besides its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewJob {
    pub task: Task,
    pub page: u32,
    pub reason: Reason,
    pub op: u32,
    pub source: u32,
}

impl Core {
    pub(crate) fn emit(&mut self, action: Action, list: &[u32], buf: &mut ActionBuf) {
        self.trace.fold(&action, list);
        buf.push(action);
    }

    /// Complete a request without a list. The completion waits until there is room.
    pub(crate) fn complete(&mut self, who: Who, status: Status, value: u64) {
        self.counters.requests_failed += u64::from(status != Status::Ok);
        self.sessions[usize::from(who.session)].completions_waiting += 1;
        let Who { session, channel, tag } = who;
        self.actions_out.push_back(Action::Complete { session, channel, tag, status, value, list: (0, 0) });
    }

    /// Write the waiting actions to `buf`. Return true if all fitted.
    pub(crate) fn flush_actions(&mut self, buf: &mut ActionBuf) -> bool {
        while buf.room() > 0 {
            let Some(action) = self.actions_out.pop_front() else { return true };
            if let Action::Complete { session, .. } = action {
                let session = &mut self.sessions[usize::from(session)];
                session.completions_waiting = session.completions_waiting.saturating_sub(1);
            }
            self.emit(action, &[], buf);
        }
        self.actions_out.is_empty()
    }

    /// Remove a request's deadline and detach its jobs.
    pub(crate) fn retire_op(&mut self, s: u16, op: u32) {
        self.forget_deadline(s, op);
        let rec = self.sessions[usize::from(s)].ops[op];
        if rec.pending > 0 {
            let session = &mut self.sessions[usize::from(s)];
            session.ops[op].pending = 0;
            for job in session.jobs.recs.iter_mut().filter(|j| j.live && j.op == op) {
                job.op = NONE;
                if job.task == Task::CopyOut && mutants::on(Mutant::CancelFreesCopyOutTarget) {
                    self.host.free(job.host);
                }
            }
        }
    }

    /// Remove a request's deadline.
    pub(crate) fn forget_deadline(&mut self, s: u16, op: u32) {
        let due_at = std::mem::replace(&mut self.sessions[usize::from(s)].ops[op].due_at, NONE);
        if due_at != NONE {
            let sessions = &mut self.sessions;
            self.deadlines.remove(due_at, |(_, s, op), at| sessions[usize::from(s)].ops[op].due_at = at);
        }
    }

    /// Complete a request with a completion without a list.
    pub(crate) fn finish_plain(&mut self, s: u16, op: u32, status: Status) {
        let rec = &self.sessions[usize::from(s)].ops[op];
        // A publish that waits for a flush is already stored.
        let stored = rec.work == Work::Publish && rec.use_pos > 0;
        self.finish_with(s, op, status, if stored { Level::Stored as u64 } else { 0 });
    }

    /// Like `finish_plain`, with a value.
    pub(crate) fn finish_with(&mut self, s: u16, op: u32, status: Status, value: u64) {
        self.retire_op(s, op);
        let rec = self.sessions[usize::from(s)].ops[op];
        self.complete(Who { session: s, channel: rec.channel, tag: rec.tag }, status, value);
        self.sessions[usize::from(s)].ops.enter(op, Phase::Free);
    }

    /// Return whether one more job can be planned for the session now.
    pub(crate) fn can_send(&self, s: u16, buf: &ActionBuf) -> bool {
        buf.room() > 0 && self.sessions[usize::from(s)].jobs.has_two_free()
    }

    /// Return the same for a job that assigns no frame to a page. It may use the last free record: it waits for no other job,
    /// while other jobs may wait for it.
    pub(crate) fn can_send_last(&self, s: u16, buf: &ActionBuf) -> bool {
        buf.room() > 0 && self.sessions[usize::from(s)].jobs.has_free()
    }

    /// Plan and send the job that makes a page resident in a picked frame. The caller checked [`Core::can_send`].
    pub(crate) fn place(&mut self, s: u16, pick: Pick, new: NewJob, buf: &mut ActionBuf) {
        self.add_in_flight(self.geo.block_of(new.page));
        let host = match new.task {
            Task::CopyIn => self.read_host(new.page),
            Task::CopyInAs => {
                self.add_in_flight(self.geo.block_of(new.source));
                self.read_host(new.source)
            }
            Task::Copy => {
                let from = self.frame(s, new.source).page;
                self.add_in_flight(self.geo.block_of(from));
                self.pin(s, new.source);
                NONE
            }
            _ => NONE,
        };
        let bytes = self.geo.classes[usize::from(self.geo.class_of_page(new.page))].page_bytes;
        let now = self.now;
        let session = &mut self.sessions[usize::from(s)];
        let NewJob { task, page, reason, op, source } = new;
        if task == Task::CopyIn {
            session.link.begin(now, bytes);
        }
        let slot = session.jobs.alloc(JobRec { task, reason, page, host, source, op, ..JobRec::default() });
        if op != NONE {
            session.ops[op].pending += 1;
        }
        self.reassign(s, slot, pick);
        self.launch(s, slot, buf);
    }

    pub(crate) fn read_host(&mut self, page: u32) -> u32 {
        let p = &mut self.pages[page as usize];
        p.loads += 1;
        let at = p.host;
        self.host.count_copying(self.geo.class_of_page(page), true);
        self.settle_host(page);
        at
    }

    /// Reassign the picked frame to the job's page. The page that it shows becomes the job's victim.
    pub(crate) fn reassign(&mut self, s: u16, slot: u32, pick: Pick) {
        let Pick { frame: f, after, stream_lane } = pick;
        let old = *self.frame(s, f);
        self.unlist(s, f);
        let mut victim = NONE;
        if old.state == FrameState::Present {
            victim = old.page;
            self.remove_copy(victim, s, f);
            self.add_in_flight(self.geo.block_of(victim));
            self.pages[victim as usize].invalidating += 1;
            self.counters.evictions += 1;
            self.settle_host(victim);
            self.overtake_plan(s, &old, after);
            self.counters.transitions += 1;
        }
        let session = &mut self.sessions[usize::from(s)];
        let job = &mut session.jobs[slot];
        (job.frame, job.victim, job.after) = (f, victim, after);
        let page = job.page;
        let clock = session.clock;
        let frame = &mut session.frames[f as usize];
        self.counters.scheduled_gone(frame);
        frame.state = FrameState::Incoming;
        (frame.job, frame.stamp, frame.spared) = (slot, clock, false);
        frame.lane = crate::pages::NO_LANE;
        self.add_copy(page, s, f);
        self.count_mapped(s, f, page, true);
        if stream_lane != crate::pages::NO_LANE {
            self.enlist(s, f, On::Stream, stream_lane);
        }
    }

    /// Record that a page leaves on which a lane's plan may depend.
    pub(crate) fn overtake_plan(&mut self, s: u16, old: &crate::pages::Frame, after: Option<(u16, u64)>) {
        let planes = u64::from(self.geo.planes_len());
        let Some(lane) = self.sessions[usize::from(s)].lanes.get_mut(usize::from(old.lane)) else { return };
        let expected = lane.cursor.step > lane.batch.step;
        if after.is_none() && expected && old.use_pos / planes == lane.cursor.step {
            lane.plan_overtaken = true;
        }
    }

    /// Plan and send a job that assigns no frame to a page.
    pub(crate) fn send_other(&mut self, s: u16, job: JobRec, buf: &mut ActionBuf) -> u32 {
        let slot = self.sessions[usize::from(s)].jobs.alloc(job);
        self.launch(s, slot, buf);
        slot
    }

    /// Send the planned job with this index, for the first time or again.
    pub(crate) fn launch(&mut self, s: u16, slot: u32, buf: &mut ActionBuf) {
        let id = self.sessions[usize::from(s)].jobs.launch(slot, self.now);
        let rec = self.sessions[usize::from(s)].jobs[slot];
        self.look_for_late(s, &rec);
        let job = self.job_of(&rec);
        self.counters.jobs += 1;
        self.emit(Action::Job { session: s, id, job }, &[], buf);
    }

    fn job_of(&self, rec: &JobRec) -> Job {
        let (block, plane) = match rec.task {
            Task::Cancel => (NONE, 0),
            _ => (self.geo.block_of(rec.page), self.geo.plane_of(rec.page)),
        };
        let frame: FrameId = rec.frame;
        let victim = (rec.victim != NONE && !mutants::on(Mutant::VictimOmitted)).then(|| Victim {
            block: self.geo.block_of(rec.victim),
            plane: self.geo.plane_of(rec.victim),
            after: rec.after,
        });
        match rec.task {
            Task::Install => Job::Install { block, plane, frame, victim },
            Task::CopyIn => Job::CopyIn { block, plane, frame, from: self.host.location(rec.host), victim },
            Task::CopyOut => Job::CopyOut { block, plane, frame, to: self.host.location(rec.host) },
            Task::Copy => Job::Copy { block, plane, frame, from: rec.source, victim },
            Task::CopyInAs => {
                let source = self.geo.block_of(rec.source);
                Job::CopyInAs { block, plane, frame, source, from: self.host.location(rec.host), victim }
            }
            Task::Drop => Job::Drop { block },
            Task::Evict => Job::Evict { block, plane, frame },
            Task::Cancel => Job::Cancel { job: rec.source },
            Task::Move => Job::Move { block, plane, frame, from: rec.source },
            Task::Gather => Job::Gather { block, plane, engine: rec.source, to: self.host.location(rec.host) },
            Task::Scatter => Job::Scatter { block, plane, engine: rec.source, from: self.host.location(rec.host) },
        }
    }
}

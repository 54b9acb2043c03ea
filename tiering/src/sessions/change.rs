//! What layers above read of the sessions, and what they change of requests and jobs, by event; time and configuration.

use crate::api::{Action, NONE, Policy, SpaceConfig, Status};
use crate::config::Geometry;
use crate::lists::List;
use crate::sessions::{Copies, JobRec, Op, PerSession, Phase, Session, Sessions, Work};
use crate::trace::Trace;

impl Sessions {
    pub(crate) fn cfg(&self) -> &SpaceConfig {
        &self.cfg
    }

    pub(crate) fn geo(&self) -> &Geometry {
        &self.geo
    }

    /// Change the policy and the sizes of the tiers.
    pub(crate) fn configure(&mut self, policy: Policy, host_bytes_max: u64, nvme_bytes_max: u64) {
        self.cfg.policy = policy;
        self.cfg.limits.host_bytes_max = host_bytes_max;
        if self.cfg.limits.nvme_bytes_max > 0 {
            // 0 would mean: no NVMe tier. One byte holds no slot either.
            self.cfg.limits.nvme_bytes_max = nvme_bytes_max.max(1);
        }
    }

    /// Return the time in microseconds.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Set the time; it does not run backwards.
    pub(crate) fn set_now(&mut self, now_us: u64) {
        self.now = self.now.max(now_us);
    }

    /// Return the number of announced steps over all sessions.
    pub(crate) fn clock(&self) -> u32 {
        self.clock
    }

    pub(crate) fn count_step(&mut self) {
        self.clock = self.clock.wrapping_add(1);
    }

    pub(crate) fn trace(&self) -> Trace {
        self.trace
    }
    pub(crate) fn session(&self, s: u16) -> &Session {
        &self.sessions[s]
    }

    pub(crate) fn sessions(&self) -> &PerSession<Session> {
        &self.sessions
    }

    pub(crate) fn op(&self, s: u16, op: u32) -> &Op {
        &self.sessions[s].ops[op]
    }

    /// Move a pending request to another phase.
    pub(crate) fn enter(&mut self, s: u16, op: u32, phase: Phase) {
        self.sessions[s].ops.enter(op, phase);
    }

    /// Change the state of a pending request.
    pub(crate) fn set_work(&mut self, s: u16, op: u32, state: impl Into<Work>) {
        self.sessions[s].ops.set(op, state);
    }

    pub(crate) fn set_status(&mut self, s: u16, op: u32, status: Status) {
        self.sessions[s].ops[op].status = status;
    }

    /// Return the copies of a request; none if it does not copy.
    pub(crate) fn copies_of(&self, s: u16, op: u32) -> Copies {
        self.sessions[s].ops.copies(op)
    }

    pub(crate) fn set_copies(&mut self, s: u16, op: u32, copies: Copies) {
        self.sessions[s].ops.set_copies(op, copies);
    }

    /// Change the chain of a request's new blocks.
    pub(crate) fn set_chain(&mut self, s: u16, op: u32, chain: List) {
        self.sessions[s].ops[op].blocks = chain;
    }

    /// Count one more job in flight of a request.
    pub(crate) fn job_begins(&mut self, s: u16, op: u32) {
        self.sessions[s].ops[op].pending += 1;
    }

    /// Count one job of a request less.
    pub(crate) fn job_ends(&mut self, s: u16, op: u32) {
        self.sessions[s].ops[op].pending -= 1;
    }

    pub(crate) fn job(&self, s: u16, slot: u32) -> &JobRec {
        &self.sessions[s].jobs[slot]
    }

    /// Add a job. The caller checked that an entry is free.
    pub(crate) fn add_job(&mut self, s: u16, job: JobRec) -> u32 {
        self.sessions[s].jobs.alloc(job)
    }

    /// Mark a job as sent and return a new id for it.
    pub(crate) fn launch_job(&mut self, s: u16, slot: u32) -> u32 {
        self.sessions[s].jobs.launch(slot, self.now)
    }

    /// Keep a job to be sent again.
    pub(crate) fn send_job_again(&mut self, s: u16, slot: u32) {
        self.sessions[s].jobs.again_later(slot);
    }

    /// Take a job out of those to be sent again.
    pub(crate) fn take_job(&mut self, s: u16, slot: u32) {
        let jobs = &mut self.sessions[s].jobs;
        jobs.again.remove(&mut jobs.recs, slot);
    }

    pub(crate) fn release_job(&mut self, s: u16, slot: u32) {
        self.sessions[s].jobs.release(slot);
    }

    /// Give a job a frame, and the page that is shown there and must leave after a use; or none.
    pub(crate) fn set_job_frame(&mut self, s: u16, slot: u32, frame: u32, victim: u32, after: Option<(u16, u64)>) {
        let job = &mut self.sessions[s].jobs[slot];
        (job.frame, job.victim, job.after) = (frame, victim, after);
    }

    /// The page that was shown in the job's frame is gone.
    pub(crate) fn forget_victim(&mut self, s: u16, slot: u32) {
        let frame = self.sessions[s].jobs[slot].frame;
        self.set_job_frame(s, slot, frame, NONE, None);
    }

    /// Count a failed attempt.
    pub(crate) fn count_try(&mut self, s: u16, slot: u32) {
        self.sessions[s].jobs[slot].tries += 1;
    }

    pub(crate) fn set_job_late(&mut self, s: u16, slot: u32, late: bool) {
        self.sessions[s].jobs[slot].late = late;
    }

    pub(crate) fn mark_canceling(&mut self, s: u16, slot: u32) {
        self.sessions[s].jobs[slot].canceling = true;
    }

    /// Discharge the bytes of a late job.
    pub(crate) fn discharge_late(&mut self, s: u16, bytes: u64) {
        self.sessions[s].late_bytes -= bytes;
    }

    /// Send an action when there is room.
    pub(crate) fn act(&mut self, action: Action) {
        self.actions_out.push_back(action);
    }

    /// Forget the completions of a session that ended.
    pub(crate) fn forget_actions(&mut self, s: u16) {
        self.actions_out.retain(
            |a| !matches!(a, Action::Complete { session, .. } | Action::EndSession { session, .. } if *session == s),
        );
    }
}

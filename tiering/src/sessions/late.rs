//! Limits of copies that may never end: how long others wait for them, and how much memory they may hold.

use crate::api::Action;
use crate::sessions::{JobRec, Life, Sessions, Task};

/// How long other sessions wait for a job that copies from or to host, and for the process of a lost session to exit, in
/// microseconds.
pub(crate) const LATE_US: u64 = 5_000_000;

/// Divisor of the space's host memory that bounds the copies in flight of one session: other sessions keep the rest if none of
/// these ever ends. A session ends when its late jobs hold as much.
const COPIES_PART: u64 = 8;

/// Return true if the job copies from or to host, so that other sessions may wait for it.
pub(crate) fn touches_host(job: &JobRec) -> bool {
    matches!(job.task, Task::CopyIn | Task::CopyInAs | Task::CopyOut | Task::Gather | Task::Scatter)
}

impl Sessions {
    /// Schedule the check for lateness of a job that was sent.
    pub(crate) fn look_for_late(&mut self, s: u16, job: &JobRec) {
        if self.sessions[s].late_at == 0 && touches_host(job) {
            let at = self.now.saturating_add(LATE_US);
            self.sessions[s].late_at = at;
            self.late_at = self.late_at.min(at);
        }
    }

    /// Return whether jobs in flight may be late now.
    pub(crate) fn may_have_late_jobs(&self) -> bool {
        self.late_at <= self.now
    }

    /// Forget when the next check for late jobs is due: all sessions are checked, and each sets it again.
    pub(crate) fn restart_late_checks(&mut self) {
        self.late_at = u64::MAX;
    }

    /// Set the time of a session's next check for late jobs; 0: none.
    pub(crate) fn set_late_at(&mut self, s: u16, at: u64) {
        self.sessions[s].late_at = at;
        if at != 0 {
            self.late_at = self.late_at.min(at);
        }
    }

    /// Return the earliest time at which a job in flight may be late.
    pub(crate) fn late_due(&self) -> Option<u64> {
        // An idle space has no jobs in flight, so it sets no timer.
        let any = self.late_at != u64::MAX && self.sessions.iter().any(|s| s.jobs.any());
        any.then_some(self.late_at)
    }

    /// Return the maximum bytes of host memory under copies of one session.
    fn copy_bytes_max(&self) -> u64 {
        self.cfg.limits.host_bytes_max / COPIES_PART
    }

    /// Return true if the session may start one more copy of a page of this class. The first copy is always allowed.
    pub(crate) fn may_copy(&self, s: u16, class: u8) -> bool {
        let bytes = self.sessions[s].copy_bytes;
        bytes == 0 || bytes + u64::from(self.geo.classes[usize::from(class)].stride) <= self.copy_bytes_max()
    }

    /// Count the start or the end of a copy between host and an engine's own block.
    pub(crate) fn count_copy(&mut self, s: u16, page: u32, begins: bool) {
        let bytes = u64::from(self.geo.classes[usize::from(self.geo.class_of_page(page))].stride);
        let sum = &mut self.sessions[s].copy_bytes;
        *sum = if begins { *sum + bytes } else { *sum - bytes };
    }

    /// Return the bytes charged for a late job. Loads into tier 0 are free: they may wait for a lane's long step and only read host
    /// memory.
    pub(crate) fn late_bytes_of(&self, job: JobRec) -> u64 {
        match job.task {
            Task::CopyIn | Task::CopyInAs => 0,
            _ => u64::from(self.geo.classes[usize::from(self.geo.class_of_page(job.page))].stride),
        }
    }

    pub(crate) fn charge_late(&mut self, s: u16, bytes: u64) {
        let bytes_max = self.copy_bytes_max();
        // The bound is reached when no copy of the largest page fits beside the late ones.
        let page = self.geo.classes.iter().map(|class| u64::from(class.stride)).max().unwrap_or(0);
        let session = &mut self.sessions[s];
        session.late_bytes += bytes;
        if bytes > 0 && session.late_bytes + page > bytes_max && !std::mem::replace(&mut session.overdrawn, true) {
            self.actions_out.push_back(Action::EndSession { session: s, late_bytes: session.late_bytes, bytes_max });
        }
    }

    /// Return true if a session was lost so recently that its process will probably exit soon and free its quarantined frames.
    pub(crate) fn is_quarantine_ending(&self) -> bool {
        let is_fresh = |at: u64| at.saturating_add(LATE_US) > self.now;
        self.sessions.iter().any(|s| s.life == Life::Lost && is_fresh(s.lost_us))
    }
}

//! Late jobs: others stop waiting for them, and their session is charged for the memory that they hold.
//!
//! A copy between host and an engine's own block releases its page at its request's deadline. Its frame, once unused, is
//! quarantined until the job ends or the process exits, and the copied bytes are discarded. A job of tier 0 keeps its page and
//! frame. Admission no longer counts on either to free memory soon. A session ends when its late jobs hold too much.

use super::Core;
use crate::api::Action;
use crate::sessions::{JobRec, Life, Task};

/// How long other sessions wait for a job that copies from or to host, and for the process of a lost session to exit, in
/// microseconds.
pub(crate) const LATE_US: u64 = 5_000_000;

/// Divisor of the space's host memory that bounds the copies in flight of one session: other sessions keep the rest if none of
/// these ever ends. A session ends when its late jobs hold as much.
const COPIES_PART: u64 = 8;

impl Core {
    /// Schedule the check for lateness of a job that was sent.
    pub(crate) fn look_for_late(&mut self, s: u16, job: &JobRec) {
        if self.sessions[usize::from(s)].late_at == 0 && touches_host(job) {
            let at = self.now.saturating_add(LATE_US);
            self.sessions[usize::from(s)].late_at = at;
            self.late_at = self.late_at.min(at);
        }
    }

    /// Return the earliest time at which a job in flight may be late.
    pub(crate) fn late_due(&self) -> Option<u64> {
        // An idle space has no jobs in flight, so it sets no timer.
        let any = self.late_at != u64::MAX && self.sessions.iter().any(|s| s.jobs.any());
        any.then_some(self.late_at)
    }

    /// Check the jobs of all sessions for lateness.
    pub(crate) fn jobs_due(&mut self) {
        self.late_at = u64::MAX;
        for s in 0..self.sessions.len() as u16 {
            match self.sessions[usize::from(s)].late_at {
                0 => {}
                at if at > self.now => self.late_at = self.late_at.min(at),
                _ => self.look_at_jobs(s),
            }
        }
    }

    fn look_at_jobs(&mut self, s: u16) {
        let mut next = 0;
        for slot in 0..self.sessions[usize::from(s)].jobs.recs.len() as u32 {
            // Read now: timing out an earlier job's request may have made this one late.
            let job = self.sessions[usize::from(s)].jobs[slot];
            if !job.in_flight || job.late || !touches_host(&job) {
                continue;
            }
            let due = job.sent_us.saturating_add(LATE_US);
            if due > self.now {
                next = if next == 0 { due } else { due.min(next) };
                continue;
            }
            match job.task {
                Task::Gather | Task::Scatter => self.time_out(s, job.op),
                _ => self.job_is_late(s, slot, job),
            }
        }
        self.sessions[usize::from(s)].late_at = next;
        if next != 0 {
            self.late_at = self.late_at.min(next);
        }
        self.wake_all();
    }

    /// Return the maximum bytes of host memory under copies of one session.
    fn copy_bytes_max(&self) -> u64 {
        self.cfg.limits.host_bytes_max / COPIES_PART
    }

    /// Return true if the session may start one more copy of a page of this class. The first copy is always allowed.
    pub(crate) fn may_copy(&self, s: u16, class: u8) -> bool {
        let bytes = self.sessions[usize::from(s)].copy_bytes;
        bytes == 0 || bytes + u64::from(self.geo.classes[usize::from(class)].stride) <= self.copy_bytes_max()
    }

    /// Count the start or the end of a copy between host and an engine's own block.
    pub(crate) fn count_copy(&mut self, s: u16, page: u32, begins: bool) {
        let bytes = u64::from(self.geo.classes[usize::from(self.geo.class_of_page(page))].stride);
        let sum = &mut self.sessions[usize::from(s)].copy_bytes;
        *sum = if begins { *sum + bytes } else { *sum - bytes };
    }

    /// Mark a job of tier 0 as late.
    fn job_is_late(&mut self, s: u16, slot: u32, job: JobRec) {
        self.sessions[usize::from(s)].jobs[slot].late = true;
        self.count_under_way(s, job, false);
        self.charge_late(s, self.late_bytes_of(job));
    }

    /// Clear the late mark of a job of tier 0 that has ended or is abandoned.
    pub(crate) fn in_time_again(&mut self, s: u16, slot: u32) {
        let job = self.sessions[usize::from(s)].jobs[slot];
        if job.late && !matches!(job.task, Task::Gather | Task::Scatter) {
            self.sessions[usize::from(s)].jobs[slot].late = false;
            self.count_under_way(s, job, true);
            self.sessions[usize::from(s)].late_bytes -= self.late_bytes_of(job);
        }
    }

    /// Add the job to the jobs that other sessions may wait for, or remove it.
    fn count_under_way(&mut self, s: u16, job: JobRec, is: bool) {
        if job.task == Task::CopyOut {
            let session = &mut self.sessions[usize::from(s)];
            let class = usize::from(session.class_of_frame(job.frame));
            let count = &mut session.classes[class].copying_out;
            *count = if is { *count + 1 } else { *count - 1 };
        } else {
            let page = if job.task == Task::CopyInAs { job.source } else { job.page };
            self.host.count_copying(self.geo.class_of_page(page), is);
        }
    }

    /// Mark a copy between host and an engine's own block as late, and release its page.
    pub(crate) fn copy_is_late(&mut self, s: u16, slot: u32, job: JobRec) {
        self.sessions[usize::from(s)].jobs[slot].late = true;
        self.host.begin_late(job.host);
        match job.task {
            Task::Gather => {
                self.host.count_copying(self.geo.class_of_page(job.page), false);
                self.pages[job.page as usize].set_copying_out(false);
                self.host.free(job.host);
                self.host_freed();
                self.settle_page(job.page);
            }
            _ => self.host_read(job.page),
        }
        self.counters.quarantined_total += 1;
        self.charge_late(s, self.late_bytes_of(job));
        self.remove_in_flight(self.geo.block_of(job.page));
    }

    /// Release the frame of a late copy that has ended, with or without an error.
    pub(crate) fn late_copy_ended(&mut self, s: u16, slot: u32, job: JobRec) {
        self.end_late(job.host);
        self.count_copy(s, job.page, false);
        let bytes = self.late_bytes_of(job);
        let session = &mut self.sessions[usize::from(s)];
        session.jobs.release(slot);
        session.late_bytes -= bytes;
        session.ops[job.op].pending -= 1;
        if session.ops[job.op].pending == 0 && session.ops[job.op].phase == crate::requests::Phase::Jobs {
            session.ops.enter(job.op, crate::requests::Phase::Ready);
        }
    }

    /// Take a host frame out of quarantine: its late copy has ended, or the process has exited.
    pub(crate) fn end_late(&mut self, at: u32) {
        self.host.end_late(at);
        if let Some(page) = self.host.page_in(at, self.host.class_of(at)) {
            self.settle_host(page);
        }
        self.host_freed();
        self.wake_admission();
    }

    /// Abandon a job of a lost session. Return true for a late copy: its frame stays in quarantine until the process exits.
    pub(crate) fn abandon_late(&mut self, s: u16, slot: u32) -> bool {
        self.in_time_again(s, slot);
        let job = self.sessions[usize::from(s)].jobs[slot];
        if job.late {
            self.sessions[usize::from(s)].late_frames.push(job.host);
        }
        job.late
    }

    /// Return the bytes charged for a late job. Loads into tier 0 are free: they may wait for a lane's long step and only read host
    /// memory.
    fn late_bytes_of(&self, job: JobRec) -> u64 {
        match job.task {
            Task::CopyIn | Task::CopyInAs => 0,
            _ => u64::from(self.geo.classes[usize::from(self.geo.class_of_page(job.page))].stride),
        }
    }

    fn charge_late(&mut self, s: u16, bytes: u64) {
        let bytes_max = self.copy_bytes_max();
        // The bound is reached when no copy of the largest page fits beside the late ones.
        let page = self.geo.classes.iter().map(|class| u64::from(class.stride)).max().unwrap_or(0);
        let session = &mut self.sessions[usize::from(s)];
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

    /// Return true if host frames of a class are in quarantine and will probably be free soon.
    pub(crate) fn are_frames_coming(&self, class: u8) -> bool {
        self.host.has_quarantined(class) && self.is_quarantine_ending()
    }

    /// End the wait of other requests for a lost session's process after [`LATE_US`].
    pub(crate) fn quarantine_due(&mut self, s: u16) {
        let session = &self.sessions[usize::from(s)];
        if session.life != Life::Lost {
            return;
        }
        match session.lost_us.saturating_add(LATE_US) {
            due if due > self.now => self.set_timer(due),
            _ => {
                self.wake_admission();
                self.host_freed(); // publishes and parks wait for frames, and learn that none comes
            }
        }
    }
}

/// Return true if the job copies from or to host, so that other sessions may wait for it.
fn touches_host(job: &JobRec) -> bool {
    matches!(job.task, Task::CopyIn | Task::CopyInAs | Task::CopyOut | Task::Gather | Task::Scatter)
}

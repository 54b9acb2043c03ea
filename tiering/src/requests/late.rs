//! Late jobs: the check of all jobs in flight, and the end of the wait for a lost session.

use crate::requests::Requests;
use crate::sessions::{LATE_US, Life, Task, touches_host};

impl Requests {
    /// Check the jobs of all sessions for lateness.
    pub(crate) fn jobs_due(&mut self) {
        self.restart_late_checks();
        for s in 0..self.sessions().len() {
            match self.session(s).late_at {
                0 => {}
                at if at > self.now() => self.set_late_at(s, at),
                _ => self.look_at_jobs(s),
            }
        }
    }

    fn look_at_jobs(&mut self, s: u16) {
        let mut next = 0;
        for slot in 0..self.session(s).jobs.recs.len() as u32 {
            // Read now: timing out an earlier job's request may have made this one late.
            let job = *self.job(s, slot);
            if !job.in_flight || job.late || !touches_host(&job) {
                continue;
            }
            let due = job.sent_us.saturating_add(LATE_US);
            if due > self.now() {
                next = if next == 0 { due } else { due.min(next) };
                continue;
            }
            match job.task {
                Task::Gather | Task::Scatter => self.time_out(s, job.op),
                _ => self.job_is_late(s, slot, job),
            }
        }
        self.set_late_at(s, next);
        self.wake_all();
    }

    /// End the wait of other requests for a lost session's process after [`LATE_US`].
    pub(crate) fn quarantine_due(&mut self, s: u16) {
        let session = self.session(s);
        if session.life != Life::Lost {
            return;
        }
        match session.lost_us.saturating_add(LATE_US) {
            due if due > self.now() => self.set_timer(due),
            _ => {
                self.wake_admission();
                self.host_freed(); // publishes and parks wait for frames, and learn that none comes
            }
        }
    }
}

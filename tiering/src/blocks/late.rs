//! Late jobs: others stop waiting for them, and their session is charged for the memory that they hold.
//!
//! A copy between host and an engine's own block releases its page at its request's deadline. Its frame, once unused, is
//! quarantined until the job ends or the process exits, and the copied bytes are discarded. A job of tier 0 keeps its page and
//! frame. Admission no longer counts on either to free memory soon. A session ends when its late jobs hold too much.

use crate::blocks::BlockTable;
use crate::sessions::{JobRec, Phase, Task};

impl BlockTable {
    /// Mark a job of tier 0 as late.
    pub(crate) fn job_is_late(&mut self, s: u16, slot: u32, job: JobRec) {
        self.set_job_late(s, slot, true);
        self.count_under_way(s, job, false);
        let bytes = self.late_bytes_of(job);
        self.charge_late(s, bytes);
    }

    /// Clear the late mark of a job of tier 0 that has ended or is abandoned.
    pub(crate) fn in_time_again(&mut self, s: u16, slot: u32) {
        let job = *self.job(s, slot);
        if job.late && !matches!(job.task, Task::Gather | Task::Scatter) {
            self.set_job_late(s, slot, false);
            self.count_under_way(s, job, true);
            let bytes = self.late_bytes_of(job);
            self.discharge_late(s, bytes);
        }
    }

    /// Add the job to the jobs that other sessions may wait for, or remove it.
    fn count_under_way(&mut self, s: u16, job: JobRec, is: bool) {
        if job.task == Task::CopyOut {
            let count = &mut self.class_mut(s, job.frame).copying_out;
            *count = if is { *count + 1 } else { *count - 1 };
        } else {
            let page = if job.task == Task::CopyInAs { job.source } else { job.page };
            self.host.count_copying(self.geo().class_of_page(page), is);
        }
    }

    /// Release the frame of a late copy that has ended, with or without an error.
    pub(crate) fn late_copy_ended(&mut self, s: u16, slot: u32, job: JobRec) {
        self.end_late(job.host);
        self.count_copy(s, job.page, false);
        let bytes = self.late_bytes_of(job);
        self.release_job(s, slot);
        self.discharge_late(s, bytes);
        self.job_ends(s, job.op);
        if self.op(s, job.op).pending == 0 && self.op(s, job.op).phase == Phase::Jobs {
            self.enter(s, job.op, Phase::Ready);
        }
    }
}

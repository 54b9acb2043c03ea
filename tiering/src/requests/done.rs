//! Completed jobs.

use crate::api::{SessionId, Status};
use crate::error::Error;
use crate::requests::Requests;
use crate::sessions::Task;

impl Requests {
    pub(crate) fn job_done(&mut self, s: SessionId, id: u32, status: Status) -> Result<(), Error> {
        let Some(slot) = self.session(s).jobs.slot_of(id) else {
            return Err(Error::Agent { session: s, job: id, what: "completed a job that is not in flight" });
        };
        self.wake(s);
        self.in_time_again(s, slot);
        let job = *self.job(s, slot);
        match job.task {
            Task::Gather | Task::Scatter if job.late => self.late_copy_ended(s, slot, job),
            Task::Install | Task::CopyIn | Task::Copy | Task::CopyInAs => self.paging().placed(s, slot, job, status),
            Task::CopyOut => self.paging().copied_out(s, slot, job, status),
            Task::Move => self.paging().moved(s, slot, job, status),
            Task::Gather | Task::Scatter => self.block_api().page_copied(s, slot, job, status),
            Task::Evict if status == Status::Ok => {
                self.release_job(s, slot);
                self.pagers[s].evict_wait_us = 0;
                self.count_mapped_invalidating(s, job.frame, false);
                self.count_mapped(s, job.frame, job.page, false);
                self.free_frame(s, job.frame);
                self.invalidated(job.page);
            }
            Task::Drop if status == Status::Ok => {
                self.release_job(s, slot);
                let b = self.geo().block_of(job.page);
                self.dropped(s, b);
            }
            Task::Evict if status == Status::Busy => {
                self.release_job(s, slot);
                self.paging().evict_later(s, job.frame);
            }
            Task::Drop if status == Status::Busy => self.paging().send_later(s, slot),
            Task::Evict | Task::Drop => {
                return Err(Error::Agent { session: s, job: id, what: "failed to invalidate a page" });
            }
            Task::Cancel => self.release_job(s, slot),
        }
        Ok(())
    }
}

//! Completed jobs.
//!
//! - `Busy`, `Canceled`, `Invalid`: nothing was done. The victim is still shown in its frame, and the job looks for another
//!   frame.
//! - `Io`: the victim is gone and the frame shows nothing. The job is retried on the same frame.
//!
//! Retries are limited, except after `Busy`, which only costs time and ends with the request's deadline.

use crate::actions::ActionBuf;
use crate::api::{NONE, Status};
use crate::blocks::{NO_LANE, On, Pick};
use crate::counters::Reason;
use crate::mutants::{self, Mutant};
use crate::paging::Paging;
use crate::sessions::{JobRec, Task};
use crate::tables::disk::IO_TRIES;

/// Delay before a refused job is sent again, in microseconds; about the time to a lane's next boundary.
const AGAIN_US: u64 = 100;

/// Time during which a frame with a pinned page is avoided while there are others, in microseconds.
const REFUSED_US: u64 = 1_000;

impl Paging<'_> {
    /// Send a job again after a delay.
    pub(crate) fn send_later(&mut self, s: u16, slot: u32) {
        let now = self.now();
        self.send_job_again(s, slot);
        if self.pagers[s].again_at == 0 {
            self.pagers[s].again_at = now.saturating_add(AGAIN_US).max(1);
            self.set_timer(now.saturating_add(AGAIN_US));
        }
    }

    pub(crate) fn placed(&mut self, s: u16, slot: u32, job: JobRec, status: Status) {
        let failed_is_fine = mutants::on(Mutant::FailedCopyInIsSuccess) && status == Status::Io;
        match status {
            Status::Ok => self.place_succeeded(s, slot, job),
            _ if failed_is_fine => self.place_succeeded(s, slot, job),
            Status::Busy if job.victim != NONE => {
                self.counters.jobs_busy += 1;
                self.undo_reassign(s, slot, job);
                self.refuse(s, job.frame);
                self.send_later(s, slot);
            }
            _ => self.place_failed(s, slot, job, status),
        }
    }

    /// Mark a frame because the engine pins its page: other frames are tried first.
    fn refuse(&mut self, s: u16, f: u32) {
        if self.frame(s, f).on == On::Clean {
            self.unlist(s, f);
            self.enlist(s, f, On::Refused, NO_LANE);
        }
        self.pagers[s].ask_again_at = self.now().saturating_add(REFUSED_US);
    }

    fn place_succeeded(&mut self, s: u16, slot: u32, job: JobRec) {
        let bytes = self.geo().classes[usize::from(self.geo().class_of_page(job.page))].page_bytes;
        match job.task {
            Task::CopyIn if self.tier0(s).is_mapped_frame(job.frame) => self.counters.shown_in_place += 1,
            Task::CopyIn => self.counters.host_to_tier0.add(job.reason, bytes),
            Task::CopyInAs => self.counters.host_to_tier0.add(Reason::Copy, bytes),
            Task::Copy => self.counters.tier0_to_tier0.add(job.reason, bytes),
            _ => {}
        }
        self.counters.transitions += 1;
        if matches!(job.task, Task::CopyIn | Task::CopyInAs) {
            self.counters.prefetch_used += u64::from(self.host.set_read_ahead(job.host, false));
        }
        self.now_shows(s, job.frame);
        self.settle(s, job.frame);
        self.end_placed(s, slot, job);
        if job.op != NONE {
            self.op_job_done(s, job.op);
        }
        self.page_arrived(s, job.page, job.frame);
        if self.host.is_reclaiming(self.geo().class_of_page(job.page)) {
            self.host_freed();
        }
    }

    fn place_failed(&mut self, s: u16, slot: u32, job: JobRec, status: Status) {
        match job.task {
            Task::CopyIn | Task::CopyInAs => self.counters.host_to_tier0.failed += 1,
            Task::Copy => self.counters.tier0_to_tier0.failed += 1,
            _ => {}
        }
        let mut job = job;
        if matches!(status, Status::Io | Status::Corrupt) {
            self.victim_gone(s, slot, &mut job);
        } else {
            self.undo_reassign(s, slot, job);
            job = *self.job(s, slot);
        }
        let wanted = self.block(self.geo().block_of(job.page)).live() && status != Status::Canceled;
        // A retry would find the same bytes.
        let corrupt = status == Status::Corrupt;
        if wanted && !corrupt && job.tries + 1 < IO_TRIES {
            self.counters.jobs_retried += 1;
            self.count_try(s, slot);
            match status {
                Status::Io => self.send_job_again(s, slot),
                _ => self.send_later(s, slot),
            }
            return;
        }
        if job.frame != NONE {
            self.count_mapped(s, job.frame, job.page, false);
            self.remove_copy(job.page, s, job.frame);
            self.free_frame(s, job.frame);
        }
        self.end_placed(s, slot, job);
        let from = if job.task == Task::CopyInAs { job.source } else { job.page };
        if corrupt {
            self.host_copy_is_bad(from);
        }
        if job.op != NONE {
            self.op_job_failed(s, job.op, status);
        } else if corrupt && self.page(from).host == NONE {
            // The waiting caller looks for another copy.
            self.wake(s);
        } else if status != Status::Canceled {
            self.page_failed(s, job.page);
        }
    }

    /// Record that the copy failed after the victim was invalidated: the frame shows no page any more.
    fn victim_gone(&mut self, s: u16, slot: u32, job: &mut JobRec) {
        let victim = std::mem::replace(&mut job.victim, NONE);
        job.after = None;
        self.forget_victim(s, slot);
        if victim != NONE {
            self.count_mapped(s, job.frame, victim, false);
            self.invalidated(victim);
        }
    }

    /// Send waiting jobs again: failed ones at once, refused ones after the delay.
    pub(crate) fn send_again(&mut self, s: u16, buf: &mut ActionBuf) {
        if self.session(s).jobs.again.is_empty() {
            return;
        }
        let now = self.now();
        let due = self.pagers[s].again_at == 0 || now >= self.pagers[s].again_at;
        if due {
            self.pagers[s].again_at = 0;
        }
        let mut slot = self.session(s).jobs.again.head;
        while slot != NONE && buf.room() > 0 {
            let job = *self.job(s, slot);
            let refused = job.task == Task::Drop || job.frame == NONE;
            if due || !refused {
                self.send_one_again(s, slot, job, buf);
            }
            slot = job.links.next;
        }
        if due && !self.session(s).jobs.again.is_empty() && buf.room() > 0 {
            self.pagers[s].again_at = now.saturating_add(AGAIN_US).max(1);
            self.set_timer(now.saturating_add(AGAIN_US));
        }
    }

    fn send_one_again(&mut self, s: u16, slot: u32, job: JobRec, buf: &mut ActionBuf) {
        let place = matches!(job.task, Task::Install | Task::CopyIn | Task::Copy | Task::CopyInAs);
        let mut take: Option<Pick> = None;
        if place && job.frame == NONE {
            let wanted = self.block(self.geo().block_of(job.page)).live() && self.find_copy(job.page, s).is_none();
            if !wanted {
                self.take_job(s, slot);
                self.end_placed(s, slot, job);
                if job.op != NONE {
                    self.op_job_done(s, job.op);
                }
                return;
            }
            if self.page(job.page).invalidating > 0 {
                self.invalidating_wanted = true;
                return;
            }
            let class = self.geo().class_of_page(job.page);
            take = self.pick_any(s, class);
            if take.is_none() {
                return;
            }
        }
        self.take_job(s, slot);
        if let Some(pick) = take {
            self.reassign(s, slot, pick);
        }
        self.launch(s, slot, buf);
    }

    /// Release the resources of a place job.
    fn end_placed(&mut self, s: u16, slot: u32, job: JobRec) {
        if job.task == Task::CopyIn && job.reason == Reason::Scheduled {
            self.pagers[s].scheduled.load_ended();
        }
        self.end_place(s, slot, job);
    }
}

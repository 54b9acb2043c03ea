//! Conversion of completions and jobs to actions.

use crate::actions::ActionBuf;
use crate::api::{Action, FrameId, Job, NONE, Victim};
use crate::blocks::{BlockTable, FrameState, NO_LANE, On, Pick};
use crate::counters::Reason;
use crate::mutants::{self, Mutant};
use crate::sessions::{JobRec, Task};

/// Parameters of a job, besides its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewJob {
    pub task: Task,
    pub page: u32,
    pub reason: Reason,
    pub op: u32,
    pub source: u32,
}

impl BlockTable {
    /// Return whether the page cannot get a frame now: the released one may still show it, or a load of it was refused and waits
    /// for another frame.
    pub(crate) fn must_wait(&mut self, s: u16, page: u32) -> bool {
        if self.pages[page as usize].invalidating > 0 && !mutants::on(Mutant::ReloadWhileInvalidating) {
            // The last job may be one of another session: this session must be woken then too.
            self.invalidating_wanted = true;
            return true;
        }
        let jobs = &self.session(s).jobs;
        jobs.again.iter(&jobs.recs).any(|j| jobs[j].page == page && jobs[j].task == Task::CopyIn)
    }

    pub(crate) fn call_off(&mut self, s: u16, slot: u32, buf: &mut ActionBuf) {
        self.mark_canceling(s, slot);
        let source = self.session(s).jobs.id(slot);
        self.counters.jobs_canceled += 1;
        self.send_other(s, JobRec { task: Task::Cancel, source, ..JobRec::default() }, buf);
    }

    /// Release the resources of a place job: its record, its sources, its blocks.
    pub(crate) fn end_place(&mut self, s: u16, slot: u32, job: JobRec) {
        self.release_job(s, slot);
        match job.task {
            Task::CopyIn => {
                let bytes = self.geo().classes[usize::from(self.geo().class_of_page(job.page))].page_bytes;
                let moved = self.present(job.page, s).is_some();
                let now = self.now();
                self.tier0[s].link.end(now, bytes, moved);
                self.host_read(job.page);
            }
            Task::CopyInAs => {
                self.host_read(job.source);
                self.remove_in_flight(self.geo().block_of(job.source));
            }
            Task::Copy => {
                let from = self.frame(s, job.source).page;
                self.unpin(s, job.source);
                self.remove_in_flight(self.geo().block_of(from));
            }
            _ => {}
        }
        if job.victim != NONE {
            self.count_mapped(s, job.frame, job.victim, false);
            self.invalidated(job.victim);
        }
        self.remove_in_flight(self.geo().block_of(job.page));
    }

    pub(crate) fn host_read(&mut self, page: u32) {
        self.pages[page as usize].loads -= 1;
        self.host.count_copying(self.geo().class_of_page(page), false);
        self.settle_host(page);
        if self.disk.exists() && self.pages[page as usize].loads == 0 {
            self.host_freed();
            self.disk.wake();
        }
    }

    /// Return the frame to the victim, if any; the job then has no frame.
    pub(crate) fn undo_reassign(&mut self, s: u16, slot: u32, job: JobRec) {
        self.unlist(s, job.frame);
        self.count_mapped(s, job.frame, job.page, false);
        self.remove_copy(job.page, s, job.frame);
        self.set_job_frame(s, slot, NONE, NONE, None);
        if job.victim == NONE {
            return self.free_frame(s, job.frame);
        }
        let clock = self.tier0[s].clock;
        let frame = self.frame_mut(s, job.frame);
        (frame.state, frame.job, frame.stamp, frame.scheduled) = (FrameState::Present, NONE, clock, false);
        // The frame's plan was for the other page.
        self.plan_use(s, job.frame, job.after.unwrap_or((NO_LANE, 0)));
        self.add_copy(job.victim, s, job.frame);
        self.counters.transitions += 1;
        self.settle(s, job.frame);
        self.settle_host(job.victim);
        self.invalidated(job.victim);
    }

    /// Record that a page is no longer shown in a frame that it gave up, or has that frame back.
    pub(crate) fn invalidated(&mut self, page: u32) {
        self.pages[page as usize].invalidating -= 1;
        if std::mem::take(&mut self.invalidating_wanted) {
            self.wake_all();
        }
        self.remove_in_flight(self.geo().block_of(page));
    }

    /// Plan and send the job that makes a page resident in a picked frame. The caller checked [`Self::can_send`].
    pub(crate) fn place(&mut self, s: u16, pick: Pick, new: NewJob, buf: &mut ActionBuf) {
        self.add_in_flight(self.geo().block_of(new.page));
        let host = match new.task {
            Task::CopyIn => self.read_host(new.page),
            Task::CopyInAs => {
                self.add_in_flight(self.geo().block_of(new.source));
                self.read_host(new.source)
            }
            Task::Copy => {
                let from = self.frame(s, new.source).page;
                self.add_in_flight(self.geo().block_of(from));
                self.pin(s, new.source);
                NONE
            }
            _ => NONE,
        };
        let bytes = self.geo().classes[usize::from(self.geo().class_of_page(new.page))].page_bytes;
        let now = self.now();
        let NewJob { task, page, reason, op, source } = new;
        if task == Task::CopyIn {
            self.tier0[s].link.begin(now, bytes);
        }
        let slot = self.add_job(s, JobRec { task, reason, page, host, source, op, ..JobRec::default() });
        if op != NONE {
            self.job_begins(s, op);
        }
        self.reassign(s, slot, pick);
        self.launch(s, slot, buf);
    }

    pub(crate) fn read_host(&mut self, page: u32) -> u32 {
        let p = &mut self.pages[page as usize];
        p.loads += 1;
        let at = p.host;
        self.host.count_copying(self.geo().class_of_page(page), true);
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
            self.add_in_flight(self.geo().block_of(victim));
            self.pages[victim as usize].invalidating += 1;
            self.counters.evictions += 1;
            self.settle_host(victim);
            self.overtake_plan(s, &old, after);
            self.counters.transitions += 1;
        }
        self.set_job_frame(s, slot, f, victim, after);
        let page = self.job(s, slot).page;
        let clock = self.tier0[s].clock;
        let frame = &mut self.tier0[s].frames[f as usize];
        self.below.counters.scheduled_wasted += u64::from(frame.end_schedule());
        frame.state = FrameState::Incoming;
        (frame.job, frame.stamp, frame.spared) = (slot, clock, false);
        frame.lane = NO_LANE;
        self.add_copy(page, s, f);
        self.count_mapped(s, f, page, true);
        if stream_lane != NO_LANE {
            self.enlist(s, f, On::Stream, stream_lane);
        }
    }

    /// Record that a page leaves on which a lane's plan may depend.
    pub(crate) fn overtake_plan(&mut self, s: u16, old: &crate::blocks::Frame, after: Option<(u16, u64)>) {
        let planes = u64::from(self.geo().planes_len());
        let Some(lane) = self.tier0[s].lanes.get_mut(usize::from(old.lane)) else { return };
        if after.is_none() && lane.expected == Some(old.use_pos / planes) {
            lane.plan_overtaken = true;
        }
    }

    /// Plan and send a job that assigns no frame to a page.
    pub(crate) fn send_other(&mut self, s: u16, job: JobRec, buf: &mut ActionBuf) -> u32 {
        let slot = self.add_job(s, job);
        self.launch(s, slot, buf);
        slot
    }

    /// Send the planned job with this index, for the first time or again.
    pub(crate) fn launch(&mut self, s: u16, slot: u32, buf: &mut ActionBuf) {
        let id = self.launch_job(s, slot);
        let rec = *self.job(s, slot);
        self.look_for_late(s, &rec);
        let job = self.job_of(&rec);
        self.counters.jobs += 1;
        self.emit(Action::Job { session: s, id, job }, &[], buf);
    }

    fn job_of(&self, rec: &JobRec) -> Job {
        let (block, plane) = match rec.task {
            Task::Cancel => (NONE, 0),
            _ => (self.geo().block_of(rec.page), self.geo().plane_of(rec.page)),
        };
        let frame: FrameId = rec.frame;
        let victim = (rec.victim != NONE && !mutants::on(Mutant::VictimOmitted)).then(|| Victim {
            block: self.geo().block_of(rec.victim),
            plane: self.geo().plane_of(rec.victim),
            after: rec.after,
        });
        match rec.task {
            Task::Install => Job::Install { block, plane, frame, victim },
            Task::CopyIn => Job::CopyIn { block, plane, frame, from: self.host.location(rec.host), victim },
            Task::CopyOut => Job::CopyOut { block, plane, frame, to: self.host.location(rec.host) },
            Task::Copy => Job::Copy { block, plane, frame, from: rec.source, victim },
            Task::CopyInAs => {
                let source = self.geo().block_of(rec.source);
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

    /// Leave the page of a Move in its old frame.
    pub(crate) fn undo_move(&mut self, s: u16, slot: u32, job: JobRec) {
        self.release_job(s, slot);
        self.remove_copy(job.page, s, job.frame);
        self.free_frame(s, job.frame);
        let frame = self.frame_mut(s, job.source);
        (frame.state, frame.job) = (FrameState::Present, NONE);
        self.add_copy(job.page, s, job.source);
        self.settle(s, job.source);
        self.remove_in_flight(self.geo().block_of(job.page));
    }
}

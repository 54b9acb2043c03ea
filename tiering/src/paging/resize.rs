//! Growth and shrinking of tier 0 while steps run: an engine that needs memory for something else gets the memory of frames back.
//!
//! A session's frames are numbered once, when it attaches, up to the maximum that it may ever have. In each size class the first
//! `count` are in use. A shrink is admitted like new pages: pages that must stay have to fit into the remaining frames, and each
//! page that loses its frame needs a place below. From then on, no page is given a frame at or above the new `count`, and pages
//! in those frames leave:
//!
//! - Clean pages are evicted at the lanes' next boundaries.
//! - Sealed pages that are only in tier 0 are stored first.
//! - Unsealed pages, which the engine writes, get another frame between steps (Move).
//! - Pinned pages are waited for.
//!
//! The request completes when the last of these frames is empty. If it fails before, by its deadline or by cancellation, the
//! class is restored.

use crate::actions::ActionBuf;
use crate::api::{NONE, Status};
use crate::blocks::{NewJob, Pick};
use crate::counters::Reason;
use crate::disk::Admit;
use crate::mutants::{self, Mutant};
use crate::paging::Paging;
use crate::sessions::{JobRec, Op, Phase, Resize, Task, Who, Work};

/// Delay before a refused Move is sent again, in microseconds.
const MOVE_AGAIN_US: u64 = 200;

impl Paging<'_> {
    pub(crate) fn resize(&mut self, who: Who, class: u8, frames: u32, due: u64) {
        let s = who.session;
        let Some(c) = self.tier0(s).classes.get(usize::from(class)) else {
            return self.complete(who, Status::Range, 0);
        };
        if frames > c.max || frames < self.geo().classes[usize::from(class)].planes.max(2) {
            let count = c.count;
            return self.complete(who, Status::Range, u64::from(count));
        }
        let resizes =
            |o: &Op| o.phase != Phase::Free && matches!(o.work, Work::Resize(resize) if resize.class == class);
        if self.session(s).ops.recs.iter().any(resizes) {
            let count = c.count;
            return self.complete(who, Status::State, u64::from(count));
        }
        if frames >= c.count {
            self.counters.tier0_grown += u64::from(frames > c.count);
            self.set_frames(s, class, frames);
            return self.complete(who, Status::Ok, u64::from(frames));
        }
        let resize = Resize { class, before: c.count, frames, started: false };
        if let Some(op) = self.new_op(who, NONE, resize, due) {
            self.enter(s, op, Phase::Admission);
        }
    }

    /// Decide whether the current pages still fit if a class has the number of frames that a resize asks for.
    pub(crate) fn admit_resize(&mut self, s: u16, Resize { class, frames, .. }: Resize) -> Admit {
        let c = &self.tier0(s).classes[usize::from(class)];
        let room = c.room_of(frames);
        if c.held() > room {
            // Only the engine can change that.
            return Admit::No(Status::Busy);
        }
        let more = c.committed_with(c.committed, c.guaranteed, room) - c.committed_in_host();
        self.admit_host(class, more, 0)
    }

    /// Apply the new number of frames of the class.
    pub(crate) fn start_resize(&mut self, s: u16, op: u32, resize: Resize) {
        self.set_work(s, op, Resize { started: true, ..resize });
        self.set_frames(s, resize.class, resize.frames);
        self.enter(s, op, Phase::Resizing);
    }

    /// Undo a shrink: the frames that it emptied become free, the others ordinary ones.
    pub(crate) fn undo_resize(&mut self, s: u16, op: u32, resize: Resize) {
        self.counters.tier0_shrinks_failed += 1;
        self.pagers[s].moves_left |= self.op(s, op).pending > 0;
        if resize.started {
            self.set_frames(s, resize.class, resize.before);
        }
    }

    fn set_frames(&mut self, s: u16, class: u8, frames: u32) {
        self.below.set_frames(s, class, frames);
        self.wake(s);
        self.wake_admission();
    }

    /// Continue the session's shrinks; there is at most one for each size class.
    pub(crate) fn issue_resizes(&mut self, s: u16, buf: &mut ActionBuf) {
        let mut op = self.session(s).ops.resizing.head;
        while op != NONE {
            let Op { links, work, .. } = *self.op(s, op);
            if let Work::Resize(Resize { class, frames, .. }) = work {
                self.evict_outgoing(s, class);
                self.send_moves(s, op, class, buf);
                if self.tier0(s).classes[usize::from(class)].beyond == 0 || mutants::on(Mutant::ShrinkEndsEarly) {
                    self.counters.tier0_shrunk += 1;
                    self.finish_with(s, op, Status::Ok, u64::from(frames));
                }
            }
            op = links.next;
        }
        self.call_off_moves(s, buf);
    }

    /// Cancel the Moves of an undone shrink that still wait for lanes to reach the end of their steps.
    fn call_off_moves(&mut self, s: u16, buf: &mut ActionBuf) {
        if !self.pagers[s].moves_left {
            return;
        }
        for slot in 0..self.cfg().limits.jobs_max {
            let job = self.job(s, slot);
            if job.live && job.task == Task::Move && job.op == NONE && !job.canceling {
                if !self.can_send_last(s, buf) {
                    return;
                }
                self.call_off(s, slot, buf);
            }
        }
        self.pagers[s].moves_left = false;
    }

    fn evict_outgoing(&mut self, s: u16, class: u8) {
        let mut f = self.tier0(s).classes[usize::from(class)].outgoing.head;
        while f != NONE {
            let next = self.frame(s, f).links.next;
            self.evict_for_resize(s, f);
            f = next;
        }
    }

    /// Evict a clean page, unless a lane was just given it for its fault and has yet to read it.
    fn evict_for_resize(&mut self, s: u16, f: u32) {
        if self.tier0(s).lanes.iter().any(|l| l.fault_frame == f) {
            return;
        }
        let old = *self.frame(s, f);
        self.overtake_plan(s, &old, None);
        self.counters.resize_evictions += 1;
        self.evict(s, f);
    }

    /// Move pages that must stay in tier 0 to frames that stay.
    fn send_moves(&mut self, s: u16, op: u32, class: u8, buf: &mut ActionBuf) {
        let c = usize::from(class);
        if self.tier0(s).classes[c].moving.is_empty() {
            return;
        }
        let again_at = self.pagers[s].move_again_at;
        if self.now() < again_at {
            return self.set_timer(again_at);
        }
        let most = (self.cfg().limits.jobs_max / 4).max(1);
        while self.op(s, op).pending < most && self.can_send(s, buf) {
            let f = self.tier0(s).classes[c].moving.head;
            let Some(pick) = self.pick_free(s, class).filter(|_| f != NONE) else { break };
            self.move_page(s, f, pick, op, buf);
        }
        self.make_room_for_moves(s, class);
    }

    /// Evict as many of the pages in remaining frames as there are pages that wait for such a frame.
    fn make_room_for_moves(&mut self, s: u16, class: u8) {
        let c = &self.tier0(s).classes[usize::from(class)];
        let under_way = self.session(s).jobs.recs.iter().filter(|j| j.live && j.task == Task::Evict).count();
        let coming = c.free.len as usize + self.tier0(s).evicts.len as usize + under_way;
        for _ in coming..c.moving.len as usize {
            let pick = self.pick_clean(s, class, None).or_else(|| self.pick_streaming(s, class));
            match pick {
                Some(pick) => self.evict_for_resize(s, pick.frame),
                None => return self.count_shortage(s, class),
            }
        }
    }

    fn move_page(&mut self, s: u16, from: u32, to: Pick, op: u32, buf: &mut ActionBuf) {
        let page = self.frame(s, from).page;
        self.begin_move(s, from);
        self.place(s, to, NewJob { task: Task::Move, page, reason: Reason::Resize, op, source: from }, buf);
        let slot = self.frame(s, to.frame).job;
        self.set_frame_job(s, from, slot);
        self.settle_host(page);
    }

    /// Return whether the session's copy of a page is being moved to another frame.
    pub(crate) fn is_moving(&self, page: u32, s: u16) -> bool {
        let jobs = &self.session(s).jobs;
        let job = self.find_copy(page, s).map_or(NONE, |f| self.frame(s, f).job);
        job != NONE && jobs[job].task == Task::Move
    }

    /// Process the end of a Move. On success the page is in its new frame and the old one is empty; otherwise the page stays in
    /// the old one.
    pub(crate) fn moved(&mut self, s: u16, slot: u32, job: JobRec, status: Status) {
        let bytes = self.geo().classes[usize::from(self.geo().class_of_page(job.page))].page_bytes;
        if status != Status::Ok {
            match status {
                Status::Busy => self.counters.jobs_busy += 1,
                _ => self.counters.tier0_to_tier0.failed += 1,
            }
            self.undo_move(s, slot, job);
            let at = self.now().saturating_add(MOVE_AGAIN_US);
            self.pagers[s].move_again_at = at;
            self.set_timer(at);
        } else {
            self.release_job(s, slot);
            self.counters.tier0_to_tier0.add(job.reason, bytes);
            self.counters.resize_moves += 1;
            self.now_shows(s, job.frame);
            self.free_frame(s, job.source);
            self.settle(s, job.frame);
            self.page_arrived(s, job.page, job.frame);
            let b = self.geo().block_of(job.page);
            self.remove_in_flight(b);
        }
        if job.op != NONE {
            self.op_job_done(s, job.op);
        }
    }
}

//! Page faults: a lane waits for one page.

use crate::actions::ActionBuf;
use crate::api::{IoClass, NONE, Status};
use crate::blocks::{FrameState, NO_LANE, NewJob, Pick};
use crate::counters::Reason;
use crate::host::{Fetch, Take, Want};
use crate::paging::Paging;
use crate::sessions::{Fault, Life, Op, Phase, Task, Who, Work};

/// Maximum number of frames that a fault checks for one that its lane is past.
const CONSUMED_MAX: u32 = 64;

impl Paging<'_> {
    /// Continue every waiting fault; there is at most one per lane that follows the protocol.
    pub(crate) fn issue_faults(&mut self, s: u16, buf: &mut ActionBuf) {
        self.each_fault(s, |paging, op, fault| paging.try_fault(s, op, fault, buf));
    }

    /// Call `look` with every waiting fault, which it may end.
    pub(crate) fn each_fault(&mut self, s: u16, mut look: impl FnMut(&mut Self, u32, Fault)) {
        let mut op = self.session(s).ops.faults.head;
        while op != NONE {
            let Op { links, work, .. } = *self.op(s, op);
            if let Work::Fault(fault) = work {
                look(self, op, fault);
            }
            op = links.next;
        }
    }

    fn try_fault(&mut self, s: u16, op: u32, fault: Fault, buf: &mut ActionBuf) {
        let page = fault.page;
        if let Some(f) = self.find_copy(page, s) {
            match self.frame(s, f).state {
                FrameState::Present => self.fault_served(s, op, fault, f),
                _ => self.hurry(s, f, (fault.lane, fault.held_from), buf),
            }
            return;
        }
        let state = *self.page(page);
        if state.lost() || state.out_of_window() {
            return self.finish_plain(s, op, Status::Lost);
        }
        let class = self.geo().class_of_page(page);
        if !self.can_send(s, buf) {
            if self.can_send_last(s, buf) {
                self.call_off_latest(s, class, (fault.lane, fault.held_from), buf);
            }
            return;
        }
        if self.only_on_disk(page) {
            let want = Want { class: IoClass::Demand, reason: Reason::Demand, take: Take::Any, planes: (0, 0) };
            if self.read_in(page, want, buf) == Fetch::NoFrame {
                // Loads that wait for later uses may hold every frame.
                self.call_off_latest(s, class, (fault.lane, fault.held_from), buf);
            }
            return;
        }
        if state.host == NONE {
            return self.fetch_from_elsewhere(page, buf);
        }
        if self.must_wait(s, page) {
            return;
        }
        let Some(pick) = self.pick_for_fault(s, &fault) else {
            return self.call_off_latest(s, class, (fault.lane, fault.held_from), buf);
        };
        let new = NewJob { task: Task::CopyIn, page, reason: Reason::Demand, op: NONE, source: NONE };
        self.place(s, pick, new, buf);
        if let Some(f) = self.find_copy(page, s) {
            self.plan_use(s, f, (fault.lane, fault.use_pos));
        }
    }

    /// Make a frame available if none of the class is. If every job in flight there waits for a use that the lane reaches only
    /// after it has its page, cancel the one that would wait longest.
    fn call_off_latest(&mut self, s: u16, class: u8, (lane, held_from): (u16, u64), buf: &mut ActionBuf) {
        let mut latest: Option<(u64, u32)> = None;
        for (slot, job) in (0..).zip(&self.session(s).jobs.recs) {
            let here =
                job.live && job.in_flight && job.frame != NONE && self.tier0(s).class_of_frame(job.frame) == class;
            if !here {
                continue;
            }
            match job.after {
                // A `Move` waits until no lane is in a step.
                _ if job.task == Task::Move && !job.canceling => latest = latest.or(Some((0, slot))),
                Some((_, after)) if job.too_late(lane, held_from) && !job.canceling => {
                    if job.op == NONE && latest.is_none_or(|(most, _)| after > most) {
                        latest = Some((after, slot));
                    }
                }
                // The job ends by itself, or is being canceled: more frames will be available then.
                _ => return,
            }
        }
        if let Some((_, slot)) = latest {
            self.call_off(s, slot, buf);
        }
    }

    /// Complete a fault: the page is resident, and stays until the lane's next boundary, when the lane may read it.
    fn fault_served(&mut self, s: u16, op: u32, fault: Fault, f: u32) {
        self.set_fault_frame(s, fault.lane, f);
        self.refresh(s, f);
        self.plan_use(s, f, (fault.lane, fault.use_pos));
        self.finish_plain(s, op, Status::Ok);
    }

    /// Speed up a page in flight. If its job waits for another lane's use, which may run on the faulting thread, or for a use that
    /// the lane reaches only after it has the page, cancel the job; the page then takes another frame.
    fn hurry(&mut self, s: u16, f: u32, (lane, held_from): (u16, u64), buf: &mut ActionBuf) {
        let slot = self.frame(s, f).job;
        if slot == NONE || !self.can_send_last(s, buf) {
            return;
        }
        let job = *self.job(s, slot);
        let blocked = job.task == Task::Move || job.too_late(lane, held_from) && job.op == NONE;
        if blocked && job.in_flight && !job.canceling {
            self.call_off(s, slot, buf);
        }
    }

    /// Return whether the page stays for the lane's use at `pos` and is replaced only after it. This occurs if the fault was in
    /// flight when the page arrived.
    fn stays_for(&self, s: u16, page: u32, lane: u16, pos: u64) -> bool {
        let mut jobs = self.session(s).jobs.recs.iter();
        self.page(page).invalidating > 0
            && jobs.any(|j| j.live && j.in_flight && j.victim == page && j.after == Some((lane, pos)))
    }

    fn pick_for_fault(&mut self, s: u16, fault: &Fault) -> Option<Pick> {
        let Fault { page, lane, use_pos: pos, .. } = *fault;
        let class = self.geo().class_of_page(page);
        if let Some(pick) = self.pick_free(s, class) {
            return Some(pick);
        }
        let limit = self.unneeded_before(s);
        if let Some(pick) = self.pick_clean(s, class, Some(limit)).or_else(|| self.pick_mapped(s, page)) {
            return Some(pick);
        }
        if fault.is_whole() {
            return self.pick_not_held(s, class, fault);
        }
        let session = self.tier0(s);
        let stream = session.lanes[usize::from(lane)].stream_lists[usize::from(class)];
        let own = stream.iter(&session.frames).find(|&f| {
            let frame = self.frame(s, f);
            self.idle(s, f) && (frame.lane != lane || frame.use_pos <= pos)
        });
        if let Some(f) = own {
            return Some(Pick { frame: f, after: self.use_of(s, f, (lane, pos)), stream_lane: lane });
        }
        if let Some(f) = self.consumed_by(s, class, lane, pos) {
            return Some(Pick { frame: f, after: None, stream_lane: NO_LANE });
        }
        self.pick_any(s, class)
    }

    /// Pick the frame of any page that the waiting lane does not keep: the least recently used clean one, else a streaming one, else one
    /// that was refused.
    fn pick_not_held(&mut self, s: u16, class: u8, fault: &Fault) -> Option<Pick> {
        let (c, at) = (usize::from(class), (fault.lane, fault.use_pos));
        for _ in 0..self.tier0(s).classes[c].clean.len {
            let f = self.tier0(s).classes[c].clean.head;
            if !self.is_held(s, f, fault) {
                return Some(Pick { frame: f, after: self.use_of(s, f, at), stream_lane: NO_LANE });
            }
            // It is in use. The next search need not check it first.
            self.move_to_back(s, f);
        }
        let session = self.tier0(s);
        let may = |f: &u32| !self.is_held(s, *f, fault);
        let streaming = session.lanes.iter().flat_map(|l| l.stream_lists[c].iter(&session.frames));
        if let Some(f) = streaming.filter(|&f| self.idle(s, f)).find(may) {
            return Some(Pick { frame: f, after: self.use_of(s, f, at), stream_lane: NO_LANE });
        }
        let refused = session.classes[c].refused.iter(&session.frames).find(may);
        let pick = refused.and_then(|f| self.pick_refused(s, f));
        if pick.is_none() {
            self.count_shortage(s, class);
        }
        pick
    }

    /// Return whether a lane that waits for a whole plane keeps the frame's page: it gives up no page of its step in the planes from its
    /// position to the one that it waits for. Behind gates it stays at the position of the first plane.
    fn is_held(&self, s: u16, f: u32, fault: &Fault) -> bool {
        let (geo, page) = (&self.geo(), self.frame(s, f).page);
        let planes = (fault.use_pos % u64::from(geo.planes_len())) as u16..=geo.plane_of(fault.page);
        let needed = self.planned_use(s, f).is_some_and(|(user, at)| user == fault.lane && at >= fault.use_pos);
        needed && planes.contains(&geo.plane_of(page))
    }

    /// Return a frame that the lane is past, among the clean pages touched last by the walk: it will be read again last.
    fn consumed_by(&self, s: u16, class: u8, lane: u16, pos: u64) -> Option<u32> {
        let session = self.tier0(s);
        let mut f = session.classes[usize::from(class)].clean.tail;
        for _ in 0..CONSUMED_MAX {
            let frame = session.frames.get(f as usize)?;
            if frame.lane == lane && frame.use_pos < pos {
                return Some(f);
            }
            f = frame.links.prev;
        }
        None
    }

    /// Complete the faults for a page that became resident in a session.
    pub(crate) fn page_arrived(&mut self, s: u16, page: u32, f: u32) {
        self.each_fault(s, |paging, op, fault| {
            if fault.page == page {
                paging.fault_served(s, op, fault, f);
            }
        });
    }

    /// Fail the faults for a page that cannot be loaded.
    pub(crate) fn page_failed(&mut self, s: u16, page: u32) {
        self.each_fault(s, |paging, op, fault| {
            if fault.page == page {
                paging.finish_plain(s, op, Status::Io);
            }
        });
    }

    /// Fail the faults of other sessions for a page that session `s` could not store.
    pub(crate) fn page_failed_elsewhere(&mut self, s: u16, page: u32) {
        for other in 0..self.sessions().len() {
            if other != s && self.session(other).life == Life::Live {
                self.page_failed(other, page);
            }
        }
    }

    /// Wake other sessions that may wait for a page that is now in host.
    pub(crate) fn wake_readers_elsewhere(&mut self, s: u16, page: u32) {
        let block = self.block(self.geo().block_of(page));
        if block.refs_other > 0 || block.home != s {
            for other in 0..self.sessions().len() {
                if other != s && self.session(other).life == Life::Live {
                    self.wake(other);
                }
            }
        }
    }

    /// End the faults of a step that is over.
    pub(crate) fn end_faults_of_step(&mut self, s: u16, lane: u16, step: u64) {
        let planes = u64::from(self.geo().planes_len());
        self.each_fault(s, |paging, op, fault| {
            if fault.lane == lane && fault.use_pos / planes <= step {
                paging.finish_plain(s, op, Status::NotFound);
            }
        });
    }

    /// Register a fault; `issue_faults` serves it in the same call.
    pub(crate) fn fault(&mut self, who: Who, (lane, use_pos): (u16, u64), whole: bool, at: (u32, u32, u16), due: u64) {
        let (s, (seq, index, plane)) = (who.session, at);
        self.counters.faults += 1;
        let session = self.tier0(s);
        let invalid = if usize::from(lane) >= session.lanes.len() || usize::from(plane) >= self.geo().planes.len() {
            Some(Status::Range)
        } else {
            match self.live_seq(s, seq) {
                _ if !session.exists() => Some(Status::State),
                None => Some(Status::NotFound),
                Some(q) if index >= q.blocks() => Some(Status::Range),
                Some(_) => None,
            }
        };
        if let Some(status) = invalid {
            return self.complete(who, status, 0);
        }
        // The lane has used the page that it was given before, because it waits for another one now.
        self.set_fault_frame(s, lane, NONE);
        let page = self.geo().page(self.seq_block(s, seq, index), plane);
        let stays = self.stays_for(s, page, lane, use_pos);
        self.counters.faults_resident += u64::from(stays || self.present(page, s).is_some());
        if stays {
            return self.complete(who, Status::Ok, 0);
        }
        let held_from = use_pos.saturating_add(u64::from(!whole));
        if let Some(op) = self.new_op(who, seq, Fault { page, index, lane, use_pos, held_from }, due) {
            self.enter(s, op, Phase::Fault);
        }
    }
}

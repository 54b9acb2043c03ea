//! Steps: walks through the pages that a lane's steps read, in order of use, and loads missing pages ahead of use.
//!
//! While frames are free or hold pages that no live step needs, this is plain promotion. Otherwise the step needs more than tier 0,
//! and the walk becomes a cyclic scan: the resident pages stay (the fixed part), and the rest streams through the lane's stream list of at
//! most `scan` frames. Each missing page takes the stream list's oldest frame, after the use of the page that it shows.
//! Least-recently-used eviction would miss every page of such a scan. This misses `needed - frames + scan` pages; the optimum would
//! miss `scan` pages fewer.
//!
//! A session with mapped frames (`mapped`) need not copy streaming pages: while a mapped frame is free for a page, the page is
//! shown in host.
//!
//! The walk continues into the expected next step (the same sequences). However, a job waits for a use in a step only if that step
//! is announced, so that every such wait can end with the lane's step.

use crate::actions::{ActionBuf, LIST_MAX};
use crate::api::{IoClass, NONE, SeqId, Status};
use crate::blocks::{Cursor, FrameState, NewJob, Pick, Seq};
use crate::counters::Reason;
use crate::host::{Take, Want};
use crate::paging::Paging;
use crate::sessions::{Task, Who};

/// Maximum number of pages that one call checks before it returns to the daemon.
pub(crate) const WALK_MAX: u32 = 4096;

/// Steps are below this, so that step × planes + plane cannot overflow.
const STEP_MAX: u64 = 1 << 48;

/// Number of steps of other lanes after which an idle lane's plan no longer counts.
const IDLE_STEPS: u32 = 16;

/// Result of visiting a page.
enum Visit {
    Done,
    /// The walk can continue only after another event.
    Stalled,
}

impl Paging<'_> {
    /// Announce a step.
    pub(crate) fn step(&mut self, who: Who, lane: u16, step: u64, seqs: &[SeqId]) -> Status {
        let s = who.session;
        let session = &self.tier0[s];
        let Some(l) = session.lanes.get(usize::from(lane)) else { return Status::Range };
        if !session.exists() {
            return Status::State;
        }
        if step >= STEP_MAX {
            return Status::Range;
        }
        // Check the limits, not the capacity of a vector: a copy of the core must reject the same requests.
        if seqs.len() > (self.cfg.limits.seqs_max as usize).min(LIST_MAX) {
            return Status::Limit;
        }
        if seqs.iter().any(|&q| self.live_seq(s, q).is_none()) {
            return Status::NotFound;
        }
        if usize::from(l.active_len) == l.active.len() || l.newest().is_some_and(|newest| step <= newest) {
            return Status::State;
        }
        self.announce(s, lane, step, seqs);
        Status::Ok
    }

    fn announce(&mut self, s: u16, lane: u16, step: u64, seqs: &[SeqId]) {
        self.clock = self.clock.wrapping_add(1);
        let host_clock = self.clock;
        self.tier0[s].clock += 1;
        let clock = self.tier0[s].clock;
        for &q in seqs {
            self.lists[s].seqs[q as usize].stamp = clock;
        }
        let l = &mut self.tier0[s].lanes[usize::from(lane)];
        l.active[usize::from(l.active_len)] = step;
        l.active_len += 1;
        l.epochs = if l.live { [clock, l.epochs[0], l.epochs[1]] } else { [clock; 3] };
        l.host_epochs = if l.live { [host_clock, l.host_epochs[0], l.host_epochs[1]] } else { [host_clock; 3] };
        let same = l.live && l.batch.seqs == seqs;
        if !same {
            (l.plan, l.plan_from) = (l.plan.wrapping_add(1), step);
        }
        let was_live = std::mem::replace(&mut l.live, true);
        let ahead = l.cursor.step > l.batch.step;
        let walking = was_live && l.cursor.running && !ahead && l.is_active(l.batch.step);
        if walking {
            // The cursor still walks through the previous step.
            l.next.step = step;
            l.next.seqs.clear();
            l.next.seqs.extend_from_slice(seqs);
            l.has_next = true;
        } else if same && ahead && l.cursor.step == step && !l.plan_overtaken {
            l.batch.step = step;
        } else {
            l.batch.step = step;
            l.batch.seqs.clear();
            l.batch.seqs.extend_from_slice(seqs);
            l.has_next = false;
            l.restart();
        }
        self.tier0[s].lanes[usize::from(lane)].plan_overtaken = false;
        self.share_frames(s);
        if !same {
            self.mark_needed(s, seqs);
        }
        self.retire_idle_lanes(s);
    }

    /// Mark pages of sequences that are new in the lane's batch as needed before the walk reaches them.
    fn mark_needed(&mut self, s: u16, seqs: &[SeqId]) {
        for plane in 0..self.geo.planes.len() as u16 {
            for &q in seqs {
                let seq = self.lists[s].seqs[q as usize];
                let (sinks, from) = self.walked(s, &seq, plane);
                for index in
                    (self.geo.first_needed(plane, seq.tokens) as u32..seq.blocks).filter(|i| *i < sinks || *i >= from)
                {
                    let page = self.geo.page(self.seq_block(s, q, index), plane);
                    if let Some(f) = self.present(page, s) {
                        self.touch(s, f);
                    }
                }
            }
        }
    }

    /// Release the frames of a lane that has not stepped while others did.
    fn retire_idle_lanes(&mut self, s: u16) {
        let session = &mut self.tier0[s];
        for lane in 0..session.lanes.len() {
            let l = &session.lanes[lane];
            let idle = l.live && l.active_len == 0 && session.clock.wrapping_sub(l.epochs[0]) > IDLE_STEPS;
            if idle {
                self.dissolve(s, lane as u16);
                return;
            }
        }
    }

    /// End the lane's plan; the frames of its stream list become ordinary clean ones.
    fn dissolve(&mut self, s: u16, lane: u16) {
        let l = &mut self.tier0[s].lanes[usize::from(lane)];
        l.live = false;
        l.has_next = false;
        l.cursor.running = false;
        for class in 0..self.geo.classes.len() {
            let mut f = self.tier0[s].lanes[usize::from(lane)].stream_lists[class].head;
            while f != NONE {
                let next = self.frame(s, f).links.next;
                self.unlist(s, f);
                self.settle(s, f);
                f = next;
            }
        }
    }

    /// End a step.
    pub(crate) fn step_end(&mut self, who: Who, lane: u16, step: u64) -> Status {
        let s = who.session;
        let Some(l) = self.tier0[s].lanes.get_mut(usize::from(lane)) else { return Status::Range };
        match l.active[..usize::from(l.active_len)] {
            [first, second] if first == step => l.active = [second, 0],
            [_, second] if second == step => {}
            [only] if only == step => {}
            _ => return Status::State,
        }
        l.active_len -= 1;
        l.fault_frame = NONE;
        if l.cursor.step == step && l.cursor.running {
            self.next_batch(s, lane);
        }
        self.end_faults_of_step(s, lane, step);
        self.wake(s);
        Status::Ok
    }

    /// Continue every lane's walk. Return false if one stopped only because it had checked the maximum number of pages.
    pub(crate) fn issue_lanes(&mut self, s: u16, buf: &mut ActionBuf) -> bool {
        let mut all = true;
        for lane in 0..self.tier0[s].lanes.len() as u16 {
            if self.tier0[s].lanes[usize::from(lane)].cursor.running {
                all &= self.walk(s, lane, buf);
                all &= self.walk_read_ahead(s, lane, buf);
            }
        }
        all
    }

    fn walk(&mut self, s: u16, lane: u16, buf: &mut ActionBuf) -> bool {
        for _ in 0..WALK_MAX {
            let Some((page, pos)) = self.cursor_page(s, lane) else { return true };
            match self.visit(s, lane, page, pos, buf) {
                Visit::Done => self.tier0[s].lanes[usize::from(lane)].cursor.index += 1,
                Visit::Stalled => return true,
            }
        }
        false
    }

    /// Return the page at the cursor and the position of its use. Advance over ends of sequences, planes and steps.
    fn cursor_page(&mut self, s: u16, lane: u16) -> Option<(u32, u64)> {
        let planes = self.geo.planes.len() as u16;
        loop {
            let l = &mut self.tier0[s].lanes[usize::from(lane)];
            if !l.cursor.running {
                return None;
            }
            let c = &mut l.cursor;
            let Some(&q) = l.batch.seqs.get(c.pos as usize) else {
                (c.pos, c.index, c.plane) = (0, NONE, c.plane + 1);
                if c.plane == planes || l.batch.seqs.is_empty() {
                    self.next_batch(s, lane);
                }
                continue;
            };
            let at = *c;
            let (seq, index) = self.first_of_walk(s, q, at);
            let c = &mut self.tier0[s].lanes[usize::from(lane)].cursor;
            if !seq.live || seq.parked || index >= seq.blocks {
                (c.pos, c.index) = (at.pos + 1, NONE);
                continue;
            }
            c.index = index;
            let from = self.walk_from(s, &seq, at.plane, index);
            if from != index {
                self.tier0[s].lanes[usize::from(lane)].cursor.index = from;
                continue;
            }
            let page = self.geo.page(self.seq_block(s, q, index), at.plane);
            return Some((page, at.step * u64::from(planes) + u64::from(at.plane)));
        }
    }

    /// Return the sequence at a cursor, and the block index: that of the cursor, or the first that the plane needs.
    pub(crate) fn first_of_walk(&self, s: u16, q: SeqId, at: Cursor) -> (Seq, u32) {
        let seq = self.lists[s].seqs[q as usize];
        let first = || self.geo.first_needed(at.plane, seq.tokens).min(u64::from(NONE - 1)) as u32;
        (seq, if at.index == NONE { first() } else { at.index })
    }

    /// Advance after a whole step to the step announced after it, or to the one expected after it.
    fn next_batch(&mut self, s: u16, lane: u16) {
        let l = &mut self.tier0[s].lanes[usize::from(lane)];
        if l.has_next {
            std::mem::swap(&mut l.batch, &mut l.next);
            l.has_next = false;
            l.restart();
        } else if l.cursor.step == l.batch.step && !l.batch.seqs.is_empty() {
            l.cursor = Cursor { step: l.batch.step + 1, plane: 0, pos: 0, index: NONE, running: true };
        } else {
            l.cursor.running = false;
        }
    }

    fn visit(&mut self, s: u16, lane: u16, page: u32, pos: u64, buf: &mut ActionBuf) -> Visit {
        let expected = {
            let l = &self.tier0[s].lanes[usize::from(lane)];
            l.cursor.step > l.batch.step
        };
        let here = self.find_copy(page, s).filter(|&f| !(expected && self.bring_home(s, f)));
        if let Some(f) = here {
            if self.frame(s, f).state == FrameState::Present && self.planned_use(s, f) != Some((lane, pos)) {
                self.touch(s, f);
            }
            self.plan_use(s, f, (lane, pos));
            self.counters.found_tier0 += u64::from(!expected);
            return Visit::Done;
        }
        let state = *self.page(page);
        if self.only_on_disk(page) {
            // The read-ahead has not reached the page, or the page was evicted since: it is next.
            let reason = if expected { Reason::Prefetch } else { Reason::Step };
            let want = Want { class: IoClass::Prefetch, reason, take: Take::Next, planes: (0, 0) };
            self.read_in(page, want, buf);
            return Visit::Stalled;
        }
        if state.host == NONE {
            // The page is in another session's tier 0, or lost: the lane's fault handles it.
            self.counters.found_nowhere += u64::from(!expected && !state.out_of_window());
            return Visit::Done;
        }
        if !self.can_send(s, buf) {
            return Visit::Stalled;
        }
        if self.must_wait(s, page) {
            return Visit::Stalled;
        }
        let Some(pick) = self.pick_for_walk(s, page, lane, pos) else { return Visit::Stalled };
        if !expected {
            match self.host.is_read_ahead(state.host) {
                true => self.counters.found_nvme += 1,
                false => self.counters.found_host += 1,
            }
        }
        let reason = if expected { Reason::Prefetch } else { Reason::Step };
        self.place(s, pick, NewJob { task: Task::CopyIn, page, reason, op: NONE, source: NONE }, buf);
        self.plan_use(s, pick.frame, (lane, pos));
        Visit::Done
    }

    fn pick_for_walk(&mut self, s: u16, page: u32, lane: u16, pos: u64) -> Option<Pick> {
        let class = self.geo.class_of_page(page);
        if let Some(pick) = self.pick_free(s, class) {
            return Some(pick);
        }
        let limit = self.unneeded_before(s);
        if let Some(pick) = self.pick_clean(s, class, Some(limit)).or_else(|| self.pick_mapped(s, page)) {
            return Some(pick);
        }
        let session = &self.tier0[s];
        let c = usize::from(class);
        let live = session.lanes.iter().filter(|l| l.live).count().max(1) as u32;
        let l = &session.lanes[usize::from(lane)];
        let (stream, last) = (l.stream_lists[c], session.classes[c].clean.tail);
        // The page used last is needed again last: its frame joins the stream list.
        let joins = last != NONE && stream.len < (session.classes[c].scan / live).max(1);
        let f = if joins { last } else { stream.head };
        if f == NONE || !self.idle(s, f) {
            self.register_shortage_if_empty(s, class, stream.len);
            return None;
        }
        let frame = &session.frames[f as usize];
        let step = frame.use_pos / u64::from(self.geo.planes_len());
        // It would be evicted at once, though the lane may not have read it in the step before.
        let unannounced = frame.lane == lane && l.newest().is_none_or(|newest| step > newest) && step >= l.batch.step;
        if unannounced {
            return None;
        }
        Some(Pick { frame: f, after: self.use_of(s, f, (lane, pos)), stream_lane: lane })
    }

    /// Request write-back if the scan has no frames to stream through.
    fn register_shortage_if_empty(&mut self, s: u16, class: u8, stream_len: u32) {
        if stream_len == 0 {
            self.tier0[s].classes[usize::from(class)].shortage += 1;
        }
    }
}

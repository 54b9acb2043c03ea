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
use crate::blocks::{FrameState, NewJob, Pick, Seq};
use crate::counters::Reason;
use crate::host::{Take, Want};
use crate::paging::{Cursor, Paging};
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
        let session = self.tier0(s);
        let Some(l) = session.lanes.get(usize::from(lane)) else { return Status::Range };
        if !session.exists() {
            return Status::State;
        }
        if step >= STEP_MAX {
            return Status::Range;
        }
        // Check the limits, not the capacity of a vector: a copy of the core must reject the same requests.
        if seqs.len() > (self.cfg().limits.seqs_max as usize).min(LIST_MAX) {
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
        let l = &self.tier0(s).lanes[usize::from(lane)];
        let (was_live, overtaken) = (l.live, l.plan_overtaken);
        let w = &self.pagers[s].walks[usize::from(lane)];
        let same = was_live && w.batch.seqs == seqs;
        self.announce_step(s, lane, step, seqs, same);
        let w = &mut self.pagers[s].walks[usize::from(lane)];
        let expected = w.expected();
        let l = &self.below.tier0(s).lanes[usize::from(lane)];
        if was_live && w.cursor.running && expected.is_none() && l.is_active(w.batch.step) {
            // The cursor still walks through the previous step.
            w.queue(step, seqs);
        } else if same && expected == Some(step) && !overtaken {
            w.batch.step = step;
        } else {
            w.begin(step, seqs);
        }
        let expected = w.expected();
        self.set_expected(s, lane, expected);
        self.walks_again(s, lane);
        self.share_frames(s);
        if !same {
            self.mark_needed(s, seqs);
        }
        self.retire_idle_lanes(s);
    }

    /// Mark pages of sequences that are new in the lane's batch as needed before the walk reaches them.
    fn mark_needed(&mut self, s: u16, seqs: &[SeqId]) {
        for plane in 0..self.geo().planes.len() as u16 {
            for &q in seqs {
                let seq = self.lists(s).seqs[q as usize];
                let (sinks, from) = self.walked(s, &seq, plane);
                for index in (self.geo().first_needed(plane, seq.tokens) as u32..seq.blocks())
                    .filter(|i| *i < sinks || *i >= from)
                {
                    let page = self.geo().page(self.seq_block(s, q, index), plane);
                    if let Some(f) = self.present(page, s) {
                        self.touch(s, f);
                    }
                }
            }
        }
    }

    /// Release the frames of a lane that has not stepped while others did.
    fn retire_idle_lanes(&mut self, s: u16) {
        let session = self.tier0(s);
        for (lane, l) in session.lanes.iter().enumerate() {
            let idle = l.live && l.active_len == 0 && session.clock.wrapping_sub(l.epochs[0]) > IDLE_STEPS;
            if idle {
                self.pagers[s].walks[lane].stop();
                self.end_plan(s, lane as u16);
                return;
            }
        }
    }

    /// End a step.
    pub(crate) fn step_end(&mut self, who: Who, lane: u16, step: u64) -> Status {
        let s = who.session;
        if usize::from(lane) >= self.tier0(s).lanes.len() {
            return Status::Range;
        }
        if !self.below.end_step(s, lane, step) {
            return Status::State;
        }
        let c = self.pagers[s].walks[usize::from(lane)].cursor;
        if c.step == step && c.running {
            self.next_batch(s, lane);
        }
        self.end_faults_of_step(s, lane, step);
        self.wake(s);
        Status::Ok
    }

    /// Continue every lane's walk. Return false if one stopped only because it had checked the maximum number of pages.
    pub(crate) fn issue_lanes(&mut self, s: u16, buf: &mut ActionBuf) -> bool {
        let mut all = true;
        for lane in 0..self.tier0(s).lanes.len() as u16 {
            if self.pagers[s].walks[usize::from(lane)].cursor.running {
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
                Visit::Done => self.pagers[s].walks[usize::from(lane)].cursor.index += 1,
                Visit::Stalled => return true,
            }
        }
        false
    }

    /// Return the page at the cursor and the position of its use. Advance over ends of sequences, planes and steps.
    fn cursor_page(&mut self, s: u16, lane: u16) -> Option<(u32, u64)> {
        let planes = self.geo().planes.len() as u16;
        loop {
            let w = &mut self.pagers[s].walks[usize::from(lane)];
            if !w.cursor.running {
                return None;
            }
            let c = &mut w.cursor;
            let Some(&q) = w.batch.seqs.get(c.pos as usize) else {
                (c.pos, c.index, c.plane) = (0, NONE, c.plane + 1);
                if c.plane == planes || w.batch.seqs.is_empty() {
                    self.next_batch(s, lane);
                }
                continue;
            };
            let at = *c;
            let (seq, index) = self.first_of_walk(s, q, at);
            let c = &mut self.pagers[s].walks[usize::from(lane)].cursor;
            if !seq.is_live() || seq.parked || index >= seq.blocks() {
                (c.pos, c.index) = (at.pos + 1, NONE);
                continue;
            }
            c.index = index;
            let from = self.walk_from(s, &seq, at.plane, index);
            if from != index {
                self.pagers[s].walks[usize::from(lane)].cursor.index = from;
                continue;
            }
            let page = self.geo().page(self.seq_block(s, q, index), at.plane);
            return Some((page, at.step * u64::from(planes) + u64::from(at.plane)));
        }
    }

    /// Return the sequence at a cursor, and the block index: that of the cursor, or the first that the plane needs.
    pub(crate) fn first_of_walk(&self, s: u16, q: SeqId, at: Cursor) -> (Seq, u32) {
        let seq = self.lists(s).seqs[q as usize];
        let first = || self.geo().first_needed(at.plane, seq.tokens).min(u64::from(NONE - 1)) as u32;
        (seq, if at.index == NONE { first() } else { at.index })
    }

    /// Advance after a whole step to the step announced after it, or to the one expected after it.
    fn next_batch(&mut self, s: u16, lane: u16) {
        let w = &mut self.pagers[s].walks[usize::from(lane)];
        w.advance();
        let expected = w.expected();
        self.set_expected(s, lane, expected);
    }

    fn visit(&mut self, s: u16, lane: u16, page: u32, pos: u64, buf: &mut ActionBuf) -> Visit {
        let expected = self.pagers[s].walks[usize::from(lane)].expected().is_some();
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
        let class = self.geo().class_of_page(page);
        if let Some(pick) = self.pick_free(s, class) {
            return Some(pick);
        }
        let limit = self.unneeded_before(s);
        if let Some(pick) = self.pick_clean(s, class, Some(limit)).or_else(|| self.pick_mapped(s, page)) {
            return Some(pick);
        }
        let session = self.tier0(s);
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
        let batch = self.pagers[s].walks[usize::from(lane)].batch.step;
        let step = frame.use_pos / u64::from(self.geo().planes_len());
        // It would be evicted at once, though the lane may not have read it in the step before.
        let unannounced = frame.lane == lane && l.newest().is_none_or(|newest| step > newest) && step >= batch;
        if unannounced {
            return None;
        }
        Some(Pick { frame: f, after: self.use_of(s, f, (lane, pos)), stream_lane: lane })
    }

    /// Request write-back if the scan has no frames to stream through.
    fn register_shortage_if_empty(&mut self, s: u16, class: u8, stream_len: u32) {
        if stream_len == 0 {
            self.count_shortage(s, class);
        }
    }
}

//! Steps: walks through what a lane's steps read, in order of use, and brings in what is missing, ahead of use.
//!
//! While frames are free or hold pages that no live step needs, that is plain promotion. When there are none left, what the
//! step needs exceeds tier 0, and the walk becomes a cyclic scan: the pages that are resident stay (the fixed part), and the
//! rest streams through the lane's ring of at most `scan` frames. Each missing page takes the ring's oldest frame, after
//! the use of the page that it shows. Least-recently-used eviction would miss every page of such a scan; this misses
//! `needed - frames + scan`, and only the scan frames' worth more than the best possible.
//!
//! A session with window frames (`window`) need not copy what streams: while one is free for a page it shows it in host.
//!
//! The walk goes on into the step that is expected next (the same sequences), but a frame is promised for after a use in
//! a step only when that step is announced, so that at the end of a lane's step every promise can be kept.

use crate::actions::{ActionBuf, LIST_MAX};
use crate::api::{IoClass, NONE, SeqId, Status};
use crate::counters::Reason;
use crate::pages::{FrameState, On};
use crate::plan::{Take, Want};
use crate::sessions::{Cursor, Task};
use crate::space::{Core, NewJob, Pick, Who};

/// Pages that one call looks at before it lets the shell do something else.
pub(super) const WALK_MAX: u32 = 4096;
/// Steps are below this, so that step × planes + plane cannot overflow.
const STEP_MAX: u64 = 1 << 48;
/// Steps of other lanes after which an idle lane's plan counts no more.
const IDLE_STEPS: u32 = 16;

/// What the walk found.
enum Visit {
    Done,
    /// It can go on only after something else has happened.
    Stalled,
}

impl Core {
    /// A step was announced.
    pub(crate) fn step(&mut self, who: Who, lane: u16, step: u64, seqs: &[SeqId]) -> Status {
        let s = who.session;
        let session = &self.sessions[usize::from(s)];
        let Some(l) = session.lanes.get(usize::from(lane)) else { return Status::Range };
        if !session.has_tier0() {
            return Status::State;
        }
        if step >= STEP_MAX {
            return Status::Range;
        }
        // Said by the bounds, not by the room of a vector: a copy of the core must refuse the same.
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
        let session = &mut self.sessions[usize::from(s)];
        session.clock += 1;
        let clock = session.clock;
        self.clock = self.clock.wrapping_add(1);
        let host_clock = self.clock;
        for &q in seqs {
            session.seqs[q as usize].stamp = clock;
        }
        let l = &mut session.lanes[usize::from(lane)];
        l.active[usize::from(l.active_len)] = step;
        l.active_len += 1;
        l.epochs = if l.live { [clock, l.epochs[0], l.epochs[1]] } else { [clock; 3] };
        l.host_epochs = if l.live { [host_clock, l.host_epochs[0], l.host_epochs[1]] } else { [host_clock; 3] };
        let same = l.live && l.batch.seqs == seqs;
        let was_live = std::mem::replace(&mut l.live, true);
        let ahead = l.cursor.step > l.batch.step;
        let walking = was_live && l.cursor.running && !ahead && l.is_active(l.batch.step);
        if walking {
            // The cursor still walks the step before.
            l.next.step = step;
            l.next.seqs.clear();
            l.next.seqs.extend_from_slice(seqs);
            l.has_next = true;
        } else if same && ahead && l.cursor.step == step && !l.robbed {
            l.batch.step = step;
        } else {
            l.batch.step = step;
            l.batch.seqs.clear();
            l.batch.seqs.extend_from_slice(seqs);
            l.has_next = false;
            l.restart();
        }
        self.sessions[usize::from(s)].lanes[usize::from(lane)].robbed = false;
        self.share_frames(s);
        if !same {
            self.mark_needed(s, seqs);
        }
        self.retire_idle_lanes(s);
    }

    /// Pages of sequences that are new in the lane's batch count as needed from now on, before the walk comes to them.
    fn mark_needed(&mut self, s: u16, seqs: &[SeqId]) {
        for plane in 0..self.geo.planes.len() as u16 {
            for &q in seqs {
                let seq = self.sessions[usize::from(s)].seqs[q as usize];
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

    /// Lanes that have not stepped while others did give their frames up.
    fn retire_idle_lanes(&mut self, s: u16) {
        let session = &mut self.sessions[usize::from(s)];
        for lane in 0..session.lanes.len() {
            let l = &session.lanes[lane];
            let idle = l.live && l.active_len == 0 && session.clock.wrapping_sub(l.epochs[0]) > IDLE_STEPS;
            if idle {
                self.dissolve(s, lane as u16);
                return;
            }
        }
    }

    /// The lane's plan ends; its ring's frames are ordinary clean ones again.
    fn dissolve(&mut self, s: u16, lane: u16) {
        let l = &mut self.sessions[usize::from(s)].lanes[usize::from(lane)];
        l.live = false;
        l.has_next = false;
        l.cursor.running = false;
        for class in 0..self.geo.classes.len() {
            let mut f = self.sessions[usize::from(s)].lanes[usize::from(lane)].rings[class].head;
            while f != NONE {
                let next = self.frame(s, f).links.next;
                self.unlist(s, f);
                self.settle(s, f);
                f = next;
            }
        }
    }

    /// A step ended.
    pub(crate) fn step_end(&mut self, who: Who, lane: u16, step: u64) -> Status {
        let s = who.session;
        let Some(l) = self.sessions[usize::from(s)].lanes.get_mut(usize::from(lane)) else { return Status::Range };
        match l.active[..usize::from(l.active_len)] {
            [first, second] if first == step => l.active = [second, 0],
            [_, second] if second == step => {}
            [only] if only == step => {}
            _ => return Status::State,
        }
        l.active_len -= 1;
        l.hold = NONE;
        if l.cursor.step == step && l.cursor.running {
            self.next_batch(s, lane);
        }
        self.end_faults_of_step(s, lane, step);
        self.wake(s);
        Status::Ok
    }

    /// Steps in which a page was touched last before this are over, on every lane with a plan.
    pub(crate) fn unneeded_before(&self, s: u16) -> u32 {
        let session = &self.sessions[usize::from(s)];
        session.lanes.iter().filter(|l| l.live).map(|l| l.epochs[2]).min().unwrap_or(u32::MAX)
    }

    /// Moves every lane's walk on. False when one stopped only because it had walked long enough.
    pub(crate) fn pump_lanes(&mut self, s: u16, buf: &mut ActionBuf) -> bool {
        let mut all = true;
        for lane in 0..self.sessions[usize::from(s)].lanes.len() as u16 {
            if self.sessions[usize::from(s)].lanes[usize::from(lane)].cursor.running {
                all &= self.walk(s, lane, buf);
                all &= self.walk_ahead(s, lane, buf);
            }
        }
        all
    }

    fn walk(&mut self, s: u16, lane: u16, buf: &mut ActionBuf) -> bool {
        for _ in 0..WALK_MAX {
            let Some((page, pos)) = self.cursor_page(s, lane) else { return true };
            match self.visit(s, lane, page, pos, buf) {
                Visit::Done => self.sessions[usize::from(s)].lanes[usize::from(lane)].cursor.index += 1,
                Visit::Stalled => return true,
            }
        }
        false
    }

    /// The page under the cursor and the position of its use; moves over ends of sequences, planes and steps.
    fn cursor_page(&mut self, s: u16, lane: u16) -> Option<(u32, u64)> {
        let planes = self.geo.planes.len() as u16;
        loop {
            let session = &mut self.sessions[usize::from(s)];
            let l = &mut session.lanes[usize::from(lane)];
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
            let seq = &session.seqs[q as usize];
            if c.index == NONE {
                c.index = self.geo.first_needed(c.plane, seq.tokens).min(u64::from(NONE - 1)) as u32;
            }
            if !seq.live || seq.parked || c.index >= seq.blocks {
                (c.pos, c.index) = (c.pos + 1, NONE);
                continue;
            }
            let (at, seq) = (*c, *seq);
            let from = self.walk_from(s, &seq, at.plane, at.index);
            if from != at.index {
                self.sessions[usize::from(s)].lanes[usize::from(lane)].cursor.index = from;
                continue;
            }
            let page = self.geo.page(self.seq_block(s, q, at.index), at.plane);
            return Some((page, at.step * u64::from(planes) + u64::from(at.plane)));
        }
    }

    /// The cursor has walked a whole step: on to the one announced after it, or to the one that is expected after it.
    fn next_batch(&mut self, s: u16, lane: u16) {
        let l = &mut self.sessions[usize::from(s)].lanes[usize::from(lane)];
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
            let l = &self.sessions[usize::from(s)].lanes[usize::from(lane)];
            l.cursor.step > l.batch.step
        };
        let here = self.find_copy(page, s).filter(|&f| !(expected && self.bring_home(s, f)));
        if let Some(f) = here {
            let frame = self.frame_mut(s, f);
            let again = (frame.lane, frame.use_pos) == (lane, pos);
            (frame.lane, frame.use_pos) = (lane, pos);
            if frame.state == FrameState::Present && !again {
                self.touch(s, f);
            }
            self.counters.found_tier0 += u64::from(!expected);
            return Visit::Done;
        }
        let state = self.pages[page as usize];
        if self.only_on_disk(page) {
            // The walk ahead has not come to it, or the page was evicted since: it is next.
            let reason = if expected { Reason::Prefetch } else { Reason::Step };
            let want = Want { class: IoClass::Prefetch, reason, take: Take::Next, planes: (0, 0) };
            self.read_in(page, want, buf);
            return Visit::Stalled;
        }
        if state.host == NONE {
            // Another session's tier 0 has it, or nobody: the lane's fault sorts it out.
            self.counters.found_nowhere += u64::from(!expected && !state.retired());
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
            match self.host.is_ahead(state.host) {
                true => self.counters.found_nvme += 1,
                false => self.counters.found_host += 1,
            }
        }
        let reason = if expected { Reason::Prefetch } else { Reason::Step };
        self.place(s, pick, NewJob { task: Task::Load, page, reason, op: NONE, source: NONE }, buf);
        let frame = self.frame_mut(s, pick.frame);
        (frame.lane, frame.use_pos) = (lane, pos);
        Visit::Done
    }

    fn pick_for_walk(&mut self, s: u16, page: u32, lane: u16, pos: u64) -> Option<Pick> {
        let class = self.geo.class_of_page(page);
        if let Some(pick) = self.pick_free(s, class) {
            return Some(pick);
        }
        let limit = self.unneeded_before(s);
        if let Some(pick) = self.pick_clean(s, class, Some(limit)).or_else(|| self.pick_window(s, page)) {
            return Some(pick);
        }
        let session = &self.sessions[usize::from(s)];
        let c = usize::from(class);
        let live = session.lanes.iter().filter(|l| l.live).count().max(1) as u32;
        let l = &session.lanes[usize::from(lane)];
        let ring = l.rings[c];
        if ring.len < (session.classes[c].scan / live).max(1) {
            // The page that was used last is needed again last: it joins the ring.
            let f = session.classes[c].clean.tail;
            if f != NONE {
                return Some(Pick { frame: f, after: self.use_of(s, f, (lane, pos)), ring: lane });
            }
        }
        let f = ring.head;
        if f == NONE || !self.idle(s, f) {
            self.starve_if_empty(s, class, ring.len);
            return None;
        }
        let frame = &session.frames[f as usize];
        let step = frame.use_pos / u64::from(self.geo.planes_len());
        let unannounced = frame.lane == lane && l.newest().is_none_or(|newest| step > newest) && step >= l.batch.step;
        if unannounced {
            return None;
        }
        Some(Pick { frame: f, after: self.use_of(s, f, (lane, pos)), ring: lane })
    }

    /// The scan has nothing to stream through: something must be cleaned.
    fn starve_if_empty(&mut self, s: u16, class: u8, ring: u32) {
        if ring == 0 {
            self.sessions[usize::from(s)].classes[usize::from(class)].starved += 1;
        }
    }

    /// The page in the frame is in use: it becomes its list's most recently used.
    pub(crate) fn touch(&mut self, s: u16, f: u32) {
        let session = &mut self.sessions[usize::from(s)];
        let clock = session.clock;
        let frame = &mut session.frames[f as usize];
        (frame.stamp, frame.spared) = (clock, false);
        let on = frame.on;
        let class = usize::from(session.class_of_frame(f));
        let c = &mut session.classes[class];
        match on {
            On::Clean => c.clean.move_back(&mut session.frames, f),
            On::Dirty => c.dirty.move_back(&mut session.frames, f),
            On::Window => c.window.move_back(&mut session.frames, f),
            _ => {}
        }
    }
}

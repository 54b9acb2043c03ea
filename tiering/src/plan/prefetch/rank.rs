//! From scores to what shall come, what may go, and what is called off.

use super::Prefetch;
use super::choose::cut;
use super::quota::{Fate, Price};
use super::track::{BETS_MAX, Bet, Promotion, QUEUE_MAX, burst_frames};
use crate::api::{NONE, SeqId};
use crate::counters::Reason;
use crate::pages::{FrameState, NO_LANE, On};
use crate::space::Core;

/// Loads that are tried before a link and a pace are measured.
const UNMEASURED_LOADS: u64 = 8;
/// Loads that a ranking may always ask for, so that what was measured low is measured again.
const LOADS_MIN: u64 = 2;
/// Of a step, what is left after its own reads for loads a step ahead: three quarters.
const STEP_PARTS: (u64, u64) = (3, 4);
/// Pages whose predicted share is at most this factor (as a logarithm) below what is kept are read from NVMe to host ahead of the
/// steps that may keep them.
const NEAR: f32 = 1.0;
/// A page is not worth a load whose predicted share is below this part of an even one: 1 / pages kept.
const GAIN_MIN: f32 = 0.02;
/// Pages of a plane that are worth a load, in percent of its even part: what is predicted to rank a little too low often ranks high
/// enough, and gives precision for coverage (measured on traces of a trained decoder: 100 gives .44 at .75).
const REACH_PERCENT: usize = 135;
/// Planes whose best pages hardly change are ranked every so many steps.
const STABLE_STEPS: u64 = 4;
/// Weight of a new sample in moving averages of loads.
const BLEND: f32 = 0.1;

impl Core {
    /// Ranks a plane for a step. `p.ids` holds its pages. `told`: by a look-ahead of that step, in the plane before.
    pub(super) fn rank_plane(&mut self, s: u16, seq: SeqId, plane: u16, step: u64, told: bool, p: &mut Prefetch) {
        if p.predictor.stable(plane) && !step.is_multiple_of(STABLE_STEPS) {
            return;
        }
        let q = self.sessions[usize::from(s)].seqs[seq as usize];
        p.scores.clear();
        p.scores.resize(p.ids.len(), 0.0);
        p.predictor.rank(plane, step, &p.ids, &mut p.scores);
        self.bias(s, &q, plane, p);
        let (part, budget) = self.even_part(s, &q, plane);
        // What is beyond the budget is not read, and no load's worth.
        let reach = (part * REACH_PERCENT / 100).min(budget.max(part));
        let least = if budget < part { cut(&p.scores, budget, &mut p.order).last } else { f32::NEG_INFINITY };
        let cut = cut(&p.scores, reach, &mut p.order);
        self.sort_out(s, (seq, plane, step), (cut.keep, cut.last.max(least)), p);
        let granted = self.grant_loads(s, (seq, plane, step), told, p);
        self.let_go_for(s, plane, granted, cut.last, p);
        let soft = &mut self.sessions[usize::from(s)].soft;
        soft.planes[q.track as usize * self.geo.planes.len() + usize::from(plane)].last_share = cut.last.exp();
    }

    /// Pages that must stay come first, pages that are gone last; those that are there have the margin's advantage.
    fn bias(&mut self, s: u16, q: &crate::sequences::Seq, plane: u16, p: &mut Prefetch) {
        let (sinks, from) = self.hard_pages(q, plane);
        let margin = self.sessions[usize::from(s)].soft.trust.margin;
        for (index, (score, &page)) in (0..).zip(p.scores.iter_mut().zip(&p.ids)) {
            let state = &self.pages[page as usize];
            *score = if index < sinks || index >= from {
                f32::INFINITY
            } else if state.retired() || state.lost() || score.is_nan() {
                f32::NEG_INFINITY
            } else if self.find_copy(page, s).is_some() {
                *score + margin
            } else {
                *score
            };
        }
    }

    /// Collects what is there of a plane, and what is missing of its even part.
    fn sort_out(
        &mut self,
        s: u16,
        (seq, plane, step): (SeqId, u16, u64),
        (part, last): (usize, f32),
        p: &mut Prefetch,
    ) {
        let soft = &mut self.sessions[usize::from(s)].soft;
        soft.queue.retain(|w| (w.seq, w.plane) != (seq, plane));
        soft.reads.retain(|w| (w.seq, w.plane) != (seq, plane));
        p.wanted.clear();
        p.there.clear();
        let least = last.max((GAIN_MIN / part.max(1) as f32).ln());
        let on_disk = self.disk.used > 0;
        for (rank, &index) in p.order.iter().enumerate() {
            let (page, score) = (p.ids[index as usize], p.scores[index as usize]);
            let best = rank < part;
            match self.find_copy(page, s) {
                Some(f) => p.there.push((f, score)),
                None if score == f32::NEG_INFINITY => {}
                None if on_disk && self.only_on_disk(page) => {
                    let reads = &mut self.sessions[usize::from(s)].soft.reads;
                    if score >= last - NEAR && reads.len() < QUEUE_MAX {
                        reads.push_back(Promotion { seq, index, plane, step });
                    }
                }
                None if best && score >= least && self.pages[page as usize].host != NONE => {
                    p.wanted.push((index, score))
                }
                None => {}
            }
            if !best && self.cfg.policy.attention.drop {
                self.drop_for_good(s, page);
            }
        }
    }

    /// Lets go what is not worth its frame, the least first: what is below the price of a frame, and while that is too little for
    /// what is to come, what is predicted to get less than that. Touches the rest.
    fn let_go_for(&mut self, s: u16, plane: u16, granted: usize, level: f32, p: &mut Prefetch) {
        let class = self.geo.class_of(plane);
        p.there.sort_unstable_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        let needed = granted.saturating_sub(self.frames_at_hand(s, class, granted));
        let session = &mut self.sessions[usize::from(s)];
        let clock = session.clock;
        let free = session.classes[usize::from(class)].free.len as usize;
        let price = match session.soft.price {
            Some(price) => price.ln,
            None if level.is_finite() => session.soft.price.insert(Price::new(level)).ln,
            None => f32::NEG_INFINITY,
        };
        let below = p.there.iter().take_while(|t| t.1 < price).count();
        let beaten = p.there.iter().zip(&p.wanted[..needed]).take_while(|(there, comes)| there.1 < comes.1).count();
        if let Some(price) = &mut session.soft.price {
            price.ranked(level, below, granted.saturating_sub(free));
        }
        let (go, stay) = p.there.split_at(below.max(beaten));
        for &(f, _) in go.iter().rev() {
            self.let_go(s, f);
        }
        for &(f, _) in stay {
            let frame = self.frame(s, f);
            if frame.state == FrameState::Present && frame.stamp != clock {
                self.touch(s, f);
            }
        }
    }

    /// Frames that are free or whose pages were let go, as far as `enough`.
    fn frames_at_hand(&self, s: u16, class: u8, enough: usize) -> usize {
        let session = &self.sessions[usize::from(s)];
        let c = &session.classes[usize::from(class)];
        let gone = c.clean.iter(&session.frames).take(enough).take_while(|&f| session.frames[f as usize].stamp == 0);
        c.free.len as usize + gone.count()
    }

    /// A page that need not be there: first to go, and no more loaded.
    fn let_go(&mut self, s: u16, f: u32) {
        let frame = *self.frame(s, f);
        if frame.state == FrameState::Present {
            self.chill(s, f);
            if frame.on == On::Dirty {
                // It can go once it is stored.
                self.unlist(s, f);
                self.enlist(s, f, On::Early, NO_LANE);
            }
            return;
        }
        let session = &mut self.sessions[usize::from(s)];
        if frame.state != FrameState::Incoming || frame.job == NONE || session.soft.cancels.len() == QUEUE_MAX {
            return;
        }
        let job = &session.jobs[frame.job];
        if job.reason == Reason::Attention && job.in_flight && !job.canceling && job.op == NONE {
            let id = session.jobs.id(frame.job);
            session.soft.cancels.push_back(id);
        }
    }

    /// The policy gives up for good what it does not keep: nobody else has the page, and no one can find it.
    fn drop_for_good(&mut self, s: u16, page: u32) {
        let b = self.geo.block_of(page);
        let block = &self.blocks[b];
        let private = block.home == s && block.content == NONE && block.refs() == 1;
        if private && block.state == crate::pages::BlockState::Sealed && !self.pages[page as usize].retired() {
            self.retire_page(b, self.geo.plane_of(page));
        }
    }

    /// Of what is missing, the best that can come in time.
    fn grant_loads(&mut self, s: u16, (seq, plane, step): (SeqId, u16, u64), told: bool, p: &mut Prefetch) -> usize {
        p.wanted.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let class = self.geo.class_of(plane);
        let page_bytes = u64::from(self.geo.classes[usize::from(class)].page_bytes);
        let percent = u64::from(self.cfg.policy.attention.bandwidth_percent);
        let count = self.sessions[usize::from(s)].classes[usize::from(class)].count;
        let session = &mut self.sessions[usize::from(s)];
        let at = session.seqs[seq as usize].track as usize * self.geo.planes.len() + usize::from(plane);
        let soft = &mut session.soft;
        let waits = soft.queue.len() as u64 * page_bytes;
        let us = if told { soft.plane_pace.us } else { soft.step_pace.us * STEP_PARTS.0 / STEP_PARTS.1 };
        let allowed = match us > 0 && soft.link.rate > 0.0 {
            true => {
                let bytes = (soft.link.carries(us) * percent / 100).saturating_sub(waits);
                ((bytes as f32 * soft.trust.share) as u64 / page_bytes).max(LOADS_MIN)
            }
            false => UNMEASURED_LOADS,
        };
        let asked = p.wanted.len();
        // `ahead` is the newest look-ahead's step + 1: the plane had one for the step before this, and will have one for this.
        let early = !told && soft.planes[at].ahead >= step;
        let allowed = if early { allowed.min(soft.short as u64) } else { allowed };
        let granted = asked.min(allowed as usize).min(QUEUE_MAX - soft.queue.len());
        if told {
            soft.short += BLEND * ((asked - granted) as f32 - soft.short);
            soft.burst += BLEND * (granted as f32 - soft.burst);
            let there = soft.queue.len() as u32 + granted as u32;
            soft.refill[usize::from(class)] = burst_frames(soft.burst, count).max(there.min(count / 16));
        }
        soft.queue.extend(p.wanted[..granted].iter().map(|&(index, _)| Promotion { seq, index, plane, step }));
        self.counters.attention_held += (asked - granted) as u64;
        granted
    }

    /// A load for a prediction was sent.
    pub(super) fn bet(&mut self, s: u16, what: Promotion, page: u32, frame: u32) {
        let bets = &mut self.sessions[usize::from(s)].soft.bets;
        if bets.len() < bets.capacity().min(BETS_MAX) {
            bets.push(Bet { what, page, frame, late: false });
        }
    }

    /// A step has read a plane: which loads for it were right, and which came too late. Those that were not of use to the step that
    /// they came for have one more.
    pub(super) fn judge(&mut self, s: u16, (seq, plane, step): (SeqId, u16, u64), rest: f32, p: &Prefetch) {
        let track = self.sessions[usize::from(s)].seqs[seq as usize].track as usize;
        let least =
            self.sessions[usize::from(s)].soft.planes[track * self.geo.planes.len() + usize::from(plane)].last_share;
        let unnamed = rest / (p.ids.len().saturating_sub(p.top.len()).max(1)) as f32;
        let mut at = 0;
        while let Some(&bet) = self.sessions[usize::from(s)].soft.bets.get(at) {
            at += 1;
            if (bet.what.seq, bet.what.plane) != (seq, plane) || bet.what.step > step {
                continue;
            }
            let frame = *self.frame(s, bet.frame);
            let shows = frame.page == bet.page && frame.state == FrameState::Present;
            let comes = frame.page == bet.page && frame.state == FrameState::Incoming;
            let share = p.top.iter().find(|t| t.0 == bet.what.index).map_or(unnamed, |t| t.1.exp());
            let bytes = u64::from(self.geo.classes[usize::from(self.geo.class_of(plane))].page_bytes);
            let fate = if comes {
                self.sessions[usize::from(s)].soft.bets[at - 1].late = true;
                if !bet.late {
                    self.counters.attention_late += 1;
                    self.sessions[usize::from(s)].soft.trust.judge(Fate::Late);
                }
                continue;
            } else if shows && share >= least {
                self.counters.attention_used += 1;
                Fate::Used
            } else if shows && step <= bet.what.step {
                continue;
            } else {
                self.counters.attention_wasted += 1;
                self.counters.attention_wasted_bytes += bytes;
                Fate::Wasted
            };
            let soft = &mut self.sessions[usize::from(s)].soft;
            soft.trust.judge(fate);
            at -= 1;
            soft.bets.swap_remove(at);
        }
    }
}

//! From scores to loads, releases and cancellations.

use super::Prefetch;
use super::choose::{Rank, cut};
use super::quota::{MARGIN_MIN, Outcome};
use super::track::{Promotion, QUEUE_MAX, TRIALS_MAX, Trial, burst_frames};
use crate::api::{NONE, SeqId};
use crate::blocks::{FrameState, NO_LANE, On, Seq};
use crate::counters::Reason;
use crate::mutants::{self, Mutant};
use crate::paging::Paging;
use crate::predict::Pages;
use crate::predict::float::{exp, ln};

/// Number of loads allowed before a link and a pace are measured.
pub(crate) const UNMEASURED_LOADS: u64 = 8;

/// Minimum number of loads that a ranking may request, so that a low measurement is corrected.
pub(crate) const LOADS_MIN: u64 = 2;

/// Part of a step's time for loads one step ahead, after its own reads: three quarters.
const STEP_PARTS: (u64, u64) = (3, 4);

/// A page is not worth a load if its predicted share is below this part of an equal share (1 / pages kept).
const GAIN_MIN: f32 = 0.02;

/// Number of pages of a plane that are worth a load, in percent of its fair share. Pages predicted slightly too low often rank high
/// enough, so this trades precision for coverage (measured on traces of a trained decoder: 100 gives .44 at .75).
const REACH_PERCENT: usize = 135;

/// Interval in steps between rankings of planes with stable best pages.
const STABLE_STEPS: u64 = 2;

/// Interval in steps after which a kept page is moved to the end of its list. Among kept pages, scores decide which is released
/// first.
const TOUCH_STEPS: u32 = 4;

/// Weight of a new sample in moving averages of loads.
const BLEND: f32 = 0.1;

/// Thresholds for the pages of a plane, as logarithms of predicted shares.
#[derive(Clone, Copy, Debug)]
struct Worth {
    /// Number of pages that rank high enough for a load.
    reach: usize,
    /// Score of the last of them.
    last: f32,
    /// Threshold of a frame of this plane.
    threshold: f32,
}

impl Paging<'_> {
    /// Rank a plane for a step. `p` holds its pages. `told`: the ranking follows a look-ahead of that step, from the preceding
    /// plane.
    pub(crate) fn rank_plane(&mut self, s: u16, seq: SeqId, plane: u16, step: u64, told: bool, p: &mut Prefetch) {
        if p.predictor.stable(plane) && !step.is_multiple_of(STABLE_STEPS) {
            return;
        }
        let q = self.lists(s).seqs[seq as usize];
        p.scores.clear();
        p.scores.resize(p.at.len(), 0.0);
        let (often, turn) = p.at.split_at(p.often);
        p.predictor.rank(plane, step, &Pages { blocks: &p.blocks, often, turn }, &mut p.scores);
        if mutants::on(Mutant::RankedBackwards) {
            p.scores.iter_mut().for_each(|score| *score = -*score);
        }
        self.weigh(s, &q, plane, p);
        let (share, budget) = self.fair_share(s, &q, plane);
        // Pages beyond the budget are not read, so they are not worth a load.
        let reach = (share * REACH_PERCENT / 100).min(budget.max(share));
        let least = if budget < share { cut(&p.scores, budget, &mut p.order).last } else { f32::NEG_INFINITY };
        let candidates = (reach + reach / 2).min(p.order.len());
        if candidates < p.order.len() {
            p.order.select_nth_unstable(candidates);
        }
        let cut = cut(&p.scores, reach, &mut p.order[..candidates]);
        p.settle(plane, self.lists(s).dir(seq), (cut.last, candidates));
        let class = usize::from(self.geo().class_of(plane));
        let planes = self.geo().planes.len();
        let prediction = &mut self.pagers[s].prediction;
        let known = &mut prediction.planes[q.track as usize * planes + usize::from(plane)];
        (known.ranked, known.last_share) = (true, exp(cut.last));
        let threshold = prediction.thresholds[class].value(known.level.seen(cut.last));
        let worth = Worth { reach: cut.keep, last: cut.last.max(least), threshold };
        self.sort_out(s, (seq, plane), worth, p);
        let granted = self.grant_loads(s, (seq, plane, step), told, p);
        self.evict_first_for(s, plane, granted, threshold, p);
        self.wake(s);
    }

    /// Find the frames of the evaluated pages and adjust their scores: pages that are always kept rank first, lost and discarded
    /// pages last, and resident pages get the margin as an advantage.
    fn weigh(&mut self, s: u16, q: &Seq, plane: u16, p: &mut Prefetch) {
        let (sinks, from) = self.always_kept(q, plane);
        let margin = self.pagers[s].prediction.trust.margin;
        p.shown_in.clear();
        p.shown_in.resize(p.at.len(), NONE);
        p.order.clear();
        p.order.resize(p.at.len(), Rank::default());
        let places = p.at.iter().zip(&mut p.scores).zip(&mut p.shown_in).zip(&mut p.order);
        for (place, (((&index, score), frame), rank)) in (0..).zip(places) {
            let page = self.geo().page(p.blocks[index as usize], plane);
            let state = *self.page(page);
            *frame = match state.frame {
                NONE => NONE,
                frame if state.session == s => frame,
                _ => self.find_copy(page, s).unwrap_or(NONE),
            };
            // No branch: residency varies from page to page.
            *score += if *frame == NONE { 0.0 } else { margin };
            if state.out_of_window() || state.lost() || score.is_nan() {
                *score = f32::NEG_INFINITY;
            }
            if index < sinks || index >= from {
                *score = f32::INFINITY;
            }
            *rank = Rank::new(*score, place);
        }
    }

    /// Collect the resident pages of a plane, and the missing pages that are worth a load.
    fn sort_out(
        &mut self,
        s: u16,
        (seq, plane): (SeqId, u16),
        Worth { reach, last, threshold }: Worth,
        p: &mut Prefetch,
    ) {
        let prediction = &mut self.pagers[s].prediction;
        prediction.queue.retain(|w| (w.seq, w.plane) != (seq, plane));
        prediction.reads.retain(|w| (w.seq, w.plane) != (seq, plane));
        prediction.coming.retain(|w| (w.seq, w.plane) != (seq, plane));
        p.wanted.clear();
        p.there.clear();
        // A page that the next ranking would release need not be loaded.
        let least = last.max(ln(GAIN_MIN / reach.max(1) as f32)).max(threshold - MARGIN_MIN);
        // No branch, as above: each entry is written, and non-resident ones are overwritten.
        p.there.resize(p.at.len() + 1, (NONE, 0.0));
        let mut there = 0;
        for (&frame, &score) in p.shown_in.iter().zip(&p.scores) {
            p.there[there] = (frame, score);
            there += usize::from(frame != NONE);
        }
        p.there.truncate(there);
        let on_disk = self.disk.used() > 0;
        for place in p.order[..reach].iter().map(|rank| rank.place()) {
            let score = p.scores[place];
            if p.shown_in[place] != NONE || score < least || score == f32::NEG_INFINITY {
                continue;
            }
            let index = p.at[place];
            if on_disk || self.page(self.geo().page(p.blocks[index as usize], plane)).host != NONE {
                p.wanted.push((index, score));
            }
        }
    }

    /// Release pages that are not worth their frames, the least valuable first: those below the threshold and, while these are too
    /// few for the granted loads, those with a smaller share than the loads. Touch the other pages.
    fn evict_first_for(&mut self, s: u16, plane: u16, granted: usize, threshold: f32, p: &mut Prefetch) {
        let class = self.geo().class_of(plane);
        let needed = granted.saturating_sub(self.frames_at_hand(s, class, granted));
        let clock = self.tier0(s).clock;
        let free = self.tier0(s).classes[usize::from(class)].free.len as usize;
        let below = p.there.iter().filter(|t| t.1 < threshold).count();
        let low = below.max(needed);
        let by_score = |a: &(u32, f32), b: &(u32, f32)| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0));
        if 0 < low && low < p.there.len() {
            p.there.select_nth_unstable_by(low, by_score);
        }
        let low = low.min(p.there.len());
        p.there[..low].sort_unstable_by(by_score);
        let beaten = p.there.iter().zip(&p.wanted[..needed]).take_while(|(there, comes)| there.1 < comes.1).count();
        self.pagers[s].prediction.thresholds[usize::from(class)].traded(below, granted.saturating_sub(free));
        let (go, stay) = p.there.split_at(below.max(beaten));
        for &(f, _) in go.iter().rev() {
            self.evict_first_or_cancel(s, f);
        }
        for &(f, _) in stay {
            let frame = self.frame(s, f);
            let fresh = frame.stamp != 0 && clock.wrapping_sub(frame.stamp) < TOUCH_STEPS;
            if frame.state == FrameState::Present && !fresh {
                self.touch(s, f);
            }
        }
    }

    /// Return the number of frames that are free or hold released pages, at most about `enough` of the latter.
    fn frames_at_hand(&self, s: u16, class: u8, enough: usize) -> usize {
        let session = self.tier0(s);
        let c = &session.classes[usize::from(class)];
        let gone = c.clean.iter(&session.frames).take(enough).take_while(|&f| session.frames[f as usize].stamp == 0);
        c.free.len as usize + gone.count()
    }

    /// Release a page that need not be resident: it is evicted first, or its load is canceled.
    fn evict_first_or_cancel(&mut self, s: u16, f: u32) {
        let frame = *self.frame(s, f);
        if frame.state == FrameState::Present {
            self.evict_first(s, f);
            if frame.on == On::Dirty {
                // It can be evicted once it is stored.
                self.unlist(s, f);
                let on = if mutants::on(Mutant::EvictFirstUnstored) { On::Clean } else { On::Early };
                self.enlist(s, f, on, NO_LANE);
            }
            return;
        }
        if frame.state != FrameState::Incoming
            || frame.job == NONE
            || self.pagers[s].prediction.cancels.len() == QUEUE_MAX
        {
            return;
        }
        let job = self.job(s, frame.job);
        let unwanted = job.reason == Reason::Attention && !mutants::on(Mutant::CancelForgotten);
        if unwanted && job.in_flight && !job.canceling && job.op == NONE {
            let id = self.session(s).jobs.id(frame.job);
            self.pagers[s].prediction.cancels.push_back(id);
        }
    }

    /// Grant the best of the missing pages that can be loaded in time.
    fn grant_loads(&mut self, s: u16, (seq, plane, step): (SeqId, u16, u64), told: bool, p: &mut Prefetch) -> usize {
        p.wanted.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        self.grant_reads(s, (seq, plane, step), p);
        let class = self.geo().class_of(plane);
        let page_bytes = u64::from(self.geo().classes[usize::from(class)].page_bytes);
        let percent = u64::from(self.cfg().policy.attention.bandwidth_percent);
        let count = self.tier0(s).classes[usize::from(class)].count;
        let planes = self.geo().planes.len();
        let at = self.lists(s).seqs[seq as usize].track as usize * planes + usize::from(plane);
        let (prediction, link) = (&mut self.pagers[s].prediction, &self.below.tier0(s).link);
        let waits = prediction.queue.len() as u64 * page_bytes;
        let us = if told { prediction.plane_pace.us } else { prediction.step_pace.us * STEP_PARTS.0 / STEP_PARTS.1 };
        let allowed = match us > 0 && link.rate > 0.0 {
            true => {
                let bytes = (link.carries(us) * percent / 100).saturating_sub(waits);
                ((bytes as f32 * prediction.trust.share) as u64 / page_bytes).max(LOADS_MIN)
            }
            false => UNMEASURED_LOADS,
        };
        let asked = p.wanted.len();
        // `ahead` is the latest look-ahead's step + 1: the plane had one for the preceding step, and will have one for this step.
        let early = !told && prediction.planes[at].ahead >= step;
        let allowed = if mutants::on(Mutant::PrefetchUnbounded) { u64::MAX } else { allowed };
        let allowed = if early { allowed.min(prediction.short as u64) } else { allowed };
        let granted = asked.min(allowed as usize).min(QUEUE_MAX - prediction.queue.len());
        if told {
            prediction.short += BLEND * ((asked - granted) as f32 - prediction.short);
            prediction.burst += BLEND * (granted as f32 - prediction.burst);
            let there = prediction.queue.len() as u32 + granted as u32;
            prediction.refill[usize::from(class)] = burst_frames(prediction.burst, count).max(there.min(count / 16));
        }
        prediction.queue.extend(p.wanted[..granted].iter().map(|&(index, _)| Promotion { seq, index, plane, step }));
        self.counters.attention_held += (asked - granted) as u64;
        granted
    }

    /// Queue reads for the missing pages that are only on disk, the best first. No other pages are read, because that would delay
    /// the reads of later planes. Keep the pages in host in `wanted`.
    fn grant_reads(&mut self, s: u16, (seq, plane, step): (SeqId, u16, u64), p: &mut Prefetch) {
        if self.disk.used() == 0 {
            return;
        }
        p.wanted.retain(|&(index, _)| {
            let page = self.geo().page(p.blocks[index as usize], plane);
            let state = *self.page(page);
            let prediction = &mut self.pagers[s].prediction;
            let to = if state.reading() { &mut prediction.coming } else { &mut prediction.reads };
            if state.host == NONE && state.on_disk() && to.len() < QUEUE_MAX {
                to.push_back(Promotion { seq, index, plane, step });
            }
            state.host != NONE
        });
    }

    /// Record a predicted load that was sent.
    pub(crate) fn begin_trial(&mut self, s: u16, what: Promotion, page: u32, frame: u32) {
        // Not by the list's capacity: a replayed core has another one.
        if self.pagers[s].prediction.trials.len() < self.tier0(s).frames.len().min(TRIALS_MAX) {
            self.pagers[s].prediction.trials.push(Trial { what, page, frame, late: false });
        }
    }

    /// Judge the loads for a plane after a step has read it: useful, wasted or late. A load that was not useful for its own step
    /// gets one more.
    pub(crate) fn end_trials(&mut self, s: u16, (seq, plane, step): (SeqId, u16, u64), rest: f32, p: &Prefetch) {
        let track = self.lists(s).seqs[seq as usize].track as usize;
        let least = self.pagers[s].prediction.planes[track * self.geo().planes.len() + usize::from(plane)].last_share;
        let unnamed = rest / (p.blocks.len().saturating_sub(p.top.len()).max(1)) as f32;
        let mut at = 0;
        while let Some(&trial) = self.pagers[s].prediction.trials.get(at) {
            at += 1;
            if (trial.what.seq, trial.what.plane) != (seq, plane) || trial.what.step > step {
                continue;
            }
            let frame = *self.frame(s, trial.frame);
            let shows = frame.page == trial.page && frame.state == FrameState::Present;
            let comes = frame.page == trial.page && frame.state == FrameState::Incoming;
            let share = p.predictor.named(trial.what.index).map_or(unnamed, exp);
            let bytes = u64::from(self.geo().classes[usize::from(self.geo().class_of(plane))].page_bytes);
            let outcome = if comes {
                self.pagers[s].prediction.trials[at - 1].late = true;
                if !trial.late {
                    self.counters.attention_late += 1;
                    self.pagers[s].prediction.trust.observe(Outcome::Late);
                }
                continue;
            } else if shows && share >= least {
                self.counters.attention_used += 1;
                Outcome::Used
            } else if shows && step <= trial.what.step {
                continue;
            } else {
                self.counters.attention_wasted += 1;
                self.counters.attention_wasted_bytes += bytes;
                Outcome::Wasted
            };
            let prediction = &mut self.pagers[s].prediction;
            prediction.trust.observe(outcome);
            at -= 1;
            prediction.trials.swap_remove(at);
        }
    }
}

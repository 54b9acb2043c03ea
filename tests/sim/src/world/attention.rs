//! Attention of lanes: the shipped agent picks the pages that an `approx` step reads, and scores of a small model of attention go
//! through real slots, mixed with invalid ones.

use super::context::{Check, Context, Ev, wrong};
use super::session::Session;
use super::steps::{Run, pages_needed};
use crate::coverage::Met;
use crate::failure::Caught;
use crate::model::{Shares, attention};
use kvtide_client::agent::attention::{Candidate, Contract, Heads, Picker, RECENT, SINKS};
use kvtide_client::agent::protocol::step::{Absent, Chosen, StepSeq};
use kvtide_wire::half::F16;
use kvtide_wire::score::{ScoreKind, ScoreSlot, ScoreWriter, Scores, TOP_MAX, Top};
use kvtide_wire::sync::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Slots of a lane: few, so that many entries are lost.
const SLOTS: usize = 16;
/// Chance, per thousand, that a lane that waits for late pages continues without them at a boundary that brings nothing.
const GIVES_UP: u64 = 150;

/// Attention state of a lane.
pub struct Signals {
    slots: Arc<[ScoreSlot]>,
    writer: ScoreWriter<Arc<[ScoreSlot]>>,
    picker: Picker,
}

impl Signals {
    /// Create the state before any score.
    #[must_use]
    pub fn new(planes: u32) -> Signals {
        let slots: Arc<[ScoreSlot]> = (0..SLOTS).map(|_| ScoreSlot::new()).collect();
        Signals { writer: ScoreWriter::new(slots.clone()), slots, picker: Picker::new(planes) }
    }

    /// Return the slots for scores.
    #[must_use]
    pub fn slots(&self) -> Arc<[ScoreSlot]> {
        self.slots.clone()
    }
}

impl Session {
    fn shares(&self, cx: &Context, lane: usize, of: (StepSeq, u16, u64)) -> Shares {
        let (StepSeq { seq, tokens }, plane, step) = of;
        let spec = &cx.geometry.config.planes[usize::from(plane)];
        let id = (self.index as u64) << 32 | (lane as u64) << 16 | u64::from(seq);
        attention(spec, (id, plane, step), tokens, cx.geometry.config.page_tokens)
    }

    /// Before a plane's first boundary: send its query and the prediction of the next one's, and pick the pages of `approx`
    /// sequences.
    pub(super) fn pick(&mut self, cx: &mut Context, lane: usize, run: &mut Run) -> Check {
        let (plane, step) = (run.plane, self.lanes[lane].reader.step());
        let told = cx.rng.chance(700);
        self.lanes[lane].reader.choose_all();
        run.picked.clear();
        run.candidates.iter_mut().for_each(Vec::clear);
        if run.members.iter().any(|member| member.contract != Contract::Exact) {
            let arrived = self.lanes[lane].reader.arrive(plane);
            if let Err(status) = arrived {
                let detail = format!("s{} lane {lane} cannot arrive at plane {plane}: {status:?}", self.index);
                return wrong(Caught::WrongAnswer, detail);
            }
        }
        for position in 0..run.members.len() {
            let of = StepSeq { seq: run.members[position].slot, tokens: run.members[position].text.len() };
            let now = self.shares(cx, lane, (of, plane, step));
            if told {
                self.tell(cx, lane, (ScoreKind::Query, of.seq, plane, step), &now);
            }
            if plane + 1 < cx.geometry.planes() && cx.rng.chance(800) {
                // The prediction is mostly right.
                let wrong = u64::from(cx.rng.chance(150)) << 20;
                let ahead = self.shares(cx, lane, (of, plane + 1, step + wrong));
                self.tell(cx, lane, (ScoreKind::Ahead, of.seq, plane + 1, step), &ahead);
                let session = self.index;
                let seen = cx.hop();
                cx.queue.after(seen, Ev::Drain { session });
            }
            let Contract::Approx { permille } = run.members[position].contract else { continue };
            if self.lanes[lane].reader.reads_whole(position as u32) {
                continue;
            }
            let sealed = self.shared.seqs().committed(of.seq) / u64::from(cx.geometry.config.page_tokens);
            let planes = self.shared.geometry().plane_count();
            let candidates = now.pages.clone().zip(&now.shares).map(|(index, share)| {
                let page = self.shared.seqs().block(of.seq, index).map(|block| block * planes + u32::from(plane));
                let history = page.map_or((0.0, 0.0), |page| self.history.get(page));
                let always_kept = index < SINKS || u64::from(index.saturating_add(RECENT)) >= sealed;
                let there = self.lanes[lane].reader.page(of.seq, index, plane).is_some();
                Candidate { index, digest: told.then_some(*share), history, always_kept, there, ..Candidate::default() }
            });
            let mut candidates: Vec<Candidate> = candidates.collect();
            self.lanes[lane].signals.picker.pick(plane, permille, &mut candidates, &Heads::default());
            if !run.hopes {
                self.lanes[lane].signals.picker.stand_in(&mut candidates);
            }
            let absent = if run.hopes { Absent::Hope } else { Absent::Omit };
            let chosen = candidates.iter().filter(|page| page.wanted());
            let chosen = chosen
                .map(|page| Chosen { index: page.index, absent: if page.always_kept { Absent::Wait } else { absent } });
            let chosen: Vec<Chosen> = chosen.collect();
            if chosen.len() < candidates.len() {
                cx.coverage.met(Met::PlaneApprox);
            }
            self.lanes[lane].reader.choose(position as u32, chosen.iter().copied());
            run.picked.extend(chosen.iter().map(|page| (position as u32, page.index, page.absent != Absent::Wait)));
            run.candidates[position] = candidates;
        }
        self.tell_nonsense(cx, lane);
        Ok(())
    }

    /// At a boundary that brings nothing: sometimes do without late pages. Return true if the plane is complete.
    pub(super) fn do_without(&mut self, cx: &mut Context, lane: usize) -> bool {
        let reader = &mut self.lanes[lane].reader;
        reader.hopes() && cx.rng.chance(GIVES_UP) && reader.waive_late()
    }

    /// Check that a step skipped only pages of a plane that its contracts do not require.
    pub(super) fn omissions(&self, cx: &mut Context, lane: usize, run: &Run) -> Check<BTreeSet<(u32, u32)>> {
        let reader = &self.lanes[lane].reader;
        let mut omitted = BTreeSet::new();
        for &(position, index) in reader.waived() {
            let may = match run.members[position as usize].contract {
                Contract::Exact => false,
                Contract::Approx { .. } => {
                    cx.coverage.met(Met::PageWaived);
                    run.picked.contains(&(position, index, true))
                }
            };
            if !may || !omitted.insert((position, index)) {
                let (me, slot) = (self.index, run.members[position as usize].slot);
                let detail =
                    format!("s{me} lane {lane}: page {index} of seq {slot} in plane {} was left out", run.plane);
                return wrong(Caught::SkippedPage, detail);
            }
        }
        Ok(omitted)
    }

    /// Return the pages that a plane must have handed out or skipped.
    pub(super) fn wanted_pages(&self, cx: &Context, run: &Run) -> BTreeSet<(u32, u32)> {
        let mut pages: BTreeSet<(u32, u32)> =
            run.picked.iter().map(|(position, index, _)| (*position, *index)).collect();
        for (position, member) in (0..).zip(&run.members) {
            // Nothing was picked for a sequence that is completely resident.
            let whole = run.candidates[position as usize].is_empty();
            if whole || !matches!(member.contract, Contract::Approx { .. }) {
                pages.extend(pages_needed(cx, member, run.plane).map(|index| (position, index)));
            }
        }
        pages
    }

    /// After a plane was read: send the attention of the read pages, and learn from it.
    pub(super) fn tell_mass(&mut self, cx: &mut Context, lane: usize, run: &Run) {
        let (plane, step) = (run.plane, self.lanes[lane].reader.step());
        let planes = self.shared.geometry().plane_count();
        for (position, member) in (0..).zip(&run.members) {
            let of = StepSeq { seq: member.slot, tokens: member.text.len() };
            let mut mass = self.shares(cx, lane, (of, plane, step));
            let read = |index: u32| run.handed.contains(&(position, index));
            let sum: f32 = mass.pages.clone().zip(&mass.shares).filter(|(index, _)| read(*index)).map(|(_, s)| s).sum();
            for (index, share) in mass.pages.clone().zip(&mut mass.shares) {
                *share = if read(index) { *share / sum.max(f32::MIN_POSITIVE) } else { f32::NAN };
            }
            for (index, share) in mass.pages.clone().zip(&mass.shares).filter(|(_, share)| share.is_finite()) {
                let page = self.shared.seqs().block(of.seq, index).map(|block| block * planes + u32::from(plane));
                page.inspect(|page| self.history.saw(*page, *share));
            }
            let candidates = &run.candidates[position as usize];
            if candidates.len() == mass.shares.len() {
                self.lanes[lane].signals.picker.learn(plane, candidates, mass.shares.iter().copied());
            }
            self.tell(cx, lane, (ScoreKind::Mass, of.seq, plane, step), &mass);
        }
    }

    /// Send shares as the agent does, the largest by name; sometimes late, twice, or not at all.
    fn tell(&mut self, cx: &mut Context, lane: usize, what: (ScoreKind, u32, u16, u64), shares: &Shares) {
        let (kind, seq, plane, step) = what;
        let logarithm = |share: f32| F16::nearest(share.ln().min(0.0));
        let said = shares.pages.clone().zip(&shares.shares).filter(|(_, share)| **share > 0.0);
        let mut top: Vec<(u32, f32)> = said.map(|(index, share)| (index, *share)).collect();
        top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let named = top.len().min(cx.rng.between(1, TOP_MAX as u64) as usize);
        let rest: f32 = top[named..].iter().map(|(_, share)| share).sum();
        let step = if cx.rng.chance(20) { step.saturating_sub(cx.rng.below(4)) } else { step };
        let top: Vec<Top> =
            top[..named].iter().map(|(index, share)| Top { index: *index, log_mass: logarithm(*share) }).collect();
        let Some(scores) = Scores::new(kind, seq, plane, step, &top, logarithm(rest)) else { return };
        for _ in 0..cx.rng.weighted(&[30, 940, 30]) {
            self.lanes[lane].signals.writer.write(&scores);
            cx.coverage.met(Met::ScoresTold);
        }
    }

    /// Send a broken engine's scores: for unknown sequences, planes and steps, with invalid shares, or with words that are no
    /// entry.
    fn tell_nonsense(&mut self, cx: &mut Context, lane: usize) {
        if !cx.rng.chance(cx.faults.nonsense) {
            return;
        }
        cx.coverage.met(Met::ScoresNonsense);
        let signals = &mut self.lanes[lane].signals;
        if cx.rng.chance(200) {
            let slot = &signals.slots[cx.rng.index(SLOTS)];
            let version = if cx.rng.chance(500) { cx.rng.below(64) } else { cx.rng.bits() };
            slot.version.store(version, Ordering::Relaxed);
            slot.words.iter().take(8).for_each(|word| word.store(cx.rng.bits(), Ordering::Relaxed));
            return;
        }
        let wild = |cx: &mut Context, most: u64| match cx.rng.below(8) {
            0 => cx.rng.bits(),
            _ => cx.rng.below(most),
        };
        let share = |cx: &mut Context| {
            F16(if cx.rng.chance(200) { cx.rng.bits() as u16 } else { 0x8000 | cx.rng.below(0x7c01) as u16 })
        };
        let most = u64::from(cx.geometry.config.limits.seq_blocks_max);
        let named = cx.rng.index(12);
        let top: Vec<Top> = (0..named).map(|_| Top { index: wild(cx, most) as u32, log_mass: share(cx) }).collect();
        let kind = cx.rng.pick(&ScoreKind::ALL);
        let (seq, plane) = (wild(cx, 8) as u32, wild(cx, u64::from(cx.geometry.planes()) + 1) as u16);
        let (step, rest) = (wild(cx, 400), share(cx));
        if let Some(scores) = Scores::new(kind, seq, plane, step, &top, rest) {
            self.lanes[lane].signals.writer.write(&scores);
        }
    }
}

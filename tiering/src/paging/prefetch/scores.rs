//! Attention scores of engines, checked and used for learning: an invalid entry is counted and changes nothing.

use super::Prefetch;
use crate::api::{Contract, NONE, PlaneKind, ScoreKind, SeqId, Status};
use crate::mutants::{self, Mutant};
use crate::paging::Paging;
use crate::predict::float::exp;
use crate::predict::{Pages, Seen};

/// A step's scores of one sequence in one plane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scores<'a> {
    pub seq: SeqId,
    pub plane: u16,
    pub step: u64,
    pub kind: ScoreKind,
    pub rest: u16,
    pub top: &'a [(u32, u16)],
}

/// Steps are below this.
pub(crate) const STEP_MAX: u64 = 1 << 48;

/// Return whether the bits are those of a binary16 that is at most 0 and not NaN: the logarithm of a share.
fn is_share(bits: u16) -> bool {
    (bits == 0) | (bits.wrapping_sub(0x8000) <= 0x7c00)
}

/// Return the exact value of such bits; that of an empty share is below -65,000.
fn ln_share(bits: u16) -> f32 {
    // Scale a binary32 built from the exponent and fraction of a binary16; its exponent is too small by 127 - 15. No branch, so
    // that it vectorises.
    const UP: f32 = -f32::from_bits((127 + 127 - 15) << 23);
    f32::from_bits(u32::from(bits & 0x7fff) << 13) * UP
}

impl Paging<'_> {
    pub(crate) fn scores(&mut self, s: u16, scores: &Scores<'_>) {
        if !self.is_sound(s, scores) && !mutants::on(Mutant::ScoresUnchecked) {
            self.counters.scores_refused += 1;
            return;
        }
        self.counters.scores += 1;
        let full = self.geo().planes[usize::from(scores.plane)].kind == PlaneKind::Full;
        if !full || !self.is_predicted(s, scores.seq) {
            return;
        }
        let Some(mut prefetch) = self.prefetch.take() else { return };
        self.learn(s, scores, &mut prefetch);
        *self.prefetch = Some(prefetch);
    }

    fn is_sound(&self, s: u16, scores: &Scores<'_>) -> bool {
        let Some(q) = self.live_seq(s, scores.seq).filter(|q| !q.parked) else { return false };
        usize::from(scores.plane) < self.geo().planes.len()
            && scores.step < STEP_MAX
            && is_share(scores.rest)
            && scores.top.iter().fold(true, |sound, &(index, share)| sound & (index < q.blocks()) & is_share(share))
    }

    fn learn(&mut self, s: u16, scores: &Scores<'_>, p: &mut Prefetch) {
        let Scores { seq, plane, step, kind, .. } = *scores;
        let q = self.lists(s).seqs[seq as usize];
        let at = q.track as usize * self.geo().planes.len() + usize::from(plane);
        let prediction = &mut self.pagers[s].prediction;
        let known = prediction.planes[at];
        if step < known.mass || kind == ScoreKind::Ahead && step < known.ahead {
            // That step has read the plane already, or the entry repeats an earlier one.
            self.counters.scores_late += 1;
            return;
        }
        match kind {
            ScoreKind::Mass if mutants::on(Mutant::MassForgotten) => return,
            ScoreKind::Mass => prediction.planes[at].mass = step + 1,
            ScoreKind::Ahead => prediction.planes[at].ahead = step + 1,
            ScoreKind::Query => {}
        }
        self.pace(s, scores);
        p.top.clear();
        p.top.extend(scores.top.iter().map(|&(index, share)| (index, ln_share(share))));
        self.look(s, (seq, plane, step), kind, p);
        let rest = exp(ln_share(scores.rest));
        let (often, turn) = p.at.split_at(p.often);
        let pages = Pages { blocks: &p.blocks, often, turn };
        let fresh = &mut self.pagers[s].prediction.planes[at].fresh;
        p.predictor.observe(plane, &pages, Seen { kind, step, rest, top: &p.top }, fresh);
        match kind {
            ScoreKind::Query => {}
            ScoreKind::Ahead => self.rank_plane(s, seq, plane, step, true, p),
            ScoreKind::Mass => {
                self.end_trials(s, (seq, plane, step), rest, p);
                // A plane with look-aheads is ranked when they arrive, except for loads that could not arrive in time then.
                let told = known.ahead > step;
                if !told || self.pagers[s].prediction.short >= 1.0 {
                    self.rank_plane(s, seq, plane, step + 1, false, p);
                }
            }
        }
    }

    /// Measure the duration of planes and steps.
    fn pace(&mut self, s: u16, scores: &Scores<'_>) {
        let (now, (step, plane)) = (self.now(), (scores.step, scores.plane));
        let prediction = &mut self.pagers[s].prediction;
        let track = &mut prediction.seqs[self.below.lists(s).seqs[scores.seq as usize].track as usize];
        match scores.kind {
            ScoreKind::Query => {}
            ScoreKind::Ahead => {
                let (before, at, then) = track.ahead_at;
                if before == step && plane > at {
                    prediction.plane_pace.add(now.saturating_sub(then) / u64::from(plane - at));
                }
                track.ahead_at = (step, plane, now);
            }
            ScoreKind::Mass => {
                let (before, at, then) = track.mass_at;
                if then != 0 && at == plane && step == before + 1 {
                    prediction.step_pace.add(now.saturating_sub(then));
                }
                if then == 0 || at == plane {
                    track.mass_at = (step, plane, now);
                }
            }
        }
    }

    /// Set how much of the sequence its steps must read, from now on.
    pub(crate) fn contract(&mut self, s: u16, seq: SeqId, contract: Contract) -> Status {
        let fits = match contract {
            Contract::Exact => true,
            Contract::Approx { permille } => (1..=1000).contains(&permille),
        };
        let Some(q) = self.live_seq(s, seq) else { return Status::NotFound };
        if !fits {
            return Status::Range;
        }
        let tracked = q.track != NONE;
        self.seq_mut(s, seq).contract = contract;
        match contract {
            Contract::Approx { .. } if !tracked => self.track(s, seq),
            Contract::Approx { .. } => {}
            Contract::Exact => self.untrack(s, seq),
        }
        Status::Ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_logarithms_at_most_zero() {
        let values = [(0x0000, 0.0), (0x8000, 0.0), (0xbc00, -1.0), (0xc100, -2.5), (0x8400, -6.103_515_6e-5)];
        for (bits, value) in values {
            assert!(is_share(bits));
            assert_eq!(ln_share(bits), value, "{bits:#x}");
        }
        assert!(ln_share(0xfc00) <= -65_504.0 && ln_share(0xfbff) == -65_504.0);
        assert_eq!(ln_share(0x8001), -f32::powi(2.0, -24));
        assert!([0x0001, 0x3c00, 0x7c00, 0x7e00, 0xfc01, 0xffff].iter().all(|&bits| !is_share(bits)));
    }
}

//! Choice of the pages of a sequence's plane to evaluate: at every step those that may be in tier 0 soon, the others in turn.
//!
//! Most pages of a long sequence are far below the kept ones, and one step does not change that. A page is a *candidate*
//! while its predicted share is close to that of the kept pages, while it is in tier 0, or when an engine names it with such a
//! share. The other pages are evaluated once in [`TURNS`] steps. The cost of a step therefore depends on the size of tier 0, not on
//! the length of the sequence.

use super::Prefetch;
use super::choose::Rank;
use crate::api::{NONE, ScoreKind, SeqId};
use crate::blocks::CHUNK;
use crate::paging::Paging;
use crate::predict::TURNS;
use crate::predict::float::ln;

/// Distance from the last kept page within which a page is a candidate, as a logarithm.
pub(super) const CANDIDATE_MARGIN: f32 = 1.0;

/// Positions of a chunk that are evaluated at steps that [`TURNS`] divides.
const TURN: u32 = u32::MAX / ((1 << TURNS) - 1);

const _: () = assert!(CHUNK == u32::BITS && TURN.count_ones() == CHUNK / TURNS);

impl Prefetch {
    /// Mark as candidates the pages that `top` names with a share close to that of the kept pages.
    fn approach(&mut self, plane: u16, dir: &[u32], kept: f32) {
        let (candidates, least) =
            (&mut self.candidates[usize::from(plane) * self.chunks..][..self.chunks], ln(kept) - CANDIDATE_MARGIN);
        for &(index, share) in &self.top {
            // No branch: whether a share is large enough varies from page to page.
            candidates[dir[(index / CHUNK) as usize] as usize] |= u32::from(share >= least) << (index % CHUNK);
        }
    }

    /// Update the candidates: those with a predicted share close to `kept` that are among the first `few` of the order, and
    /// those that are in tier 0 or in flight to it.
    pub(super) fn settle(&mut self, plane: u16, dir: &[u32], (kept, few): (f32, usize)) {
        self.marks.clear();
        self.marks.resize(self.blocks.len().div_ceil(CHUNK as usize), 0);
        let marks = &mut self.marks[..];
        // No branch: whether a page is a candidate or resident varies from page to page.
        let mut mark = |at: u32, set: bool| {
            if let Some(word) = marks.get_mut((at / CHUNK) as usize) {
                *word |= u32::from(set) << (at % CHUNK);
            }
        };
        // The last of the ranks with this score.
        let least = Rank::new(kept - CANDIDATE_MARGIN, 0);
        self.order[..few].iter().for_each(|rank| mark(self.at[rank.place()], *rank <= least));
        self.shown_in.iter().zip(&self.at).for_each(|(frame, &at)| mark(at, *frame != NONE));
        let candidates = &mut self.candidates[usize::from(plane) * self.chunks..][..self.chunks];
        for (word, chunk) in self.marks.iter().zip(dir) {
            candidates[*chunk as usize] = *word;
        }
    }
}

/// Return the positions of a chunk that are due at this step. In a plane that is ranked only at some steps, every position gets its
/// turn too.
pub(crate) fn turn(step: u64) -> u32 {
    TURN << ((step + step / u64::from(TURNS)) % u64::from(TURNS))
}

/// Append the positions of a word's bits.
pub(crate) fn push(first: u32, mut bits: u32, to: &mut Vec<u32>) {
    to.extend((0..bits.count_ones()).map(|_| {
        let at = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        first + at
    }));
}

impl Paging<'_> {
    /// Collect the pages of a sequence's plane for a kind of scores. Query scores update only the pages that `p.top` names.
    /// Attention scores also evaluate those, whatever their shares.
    pub(crate) fn look(&mut self, s: u16, (seq, plane, step): (SeqId, u16, u64), kind: ScoreKind, p: &mut Prefetch) {
        let (q, dir) = (self.lists(s).seqs[seq as usize], self.lists(s).dir(seq));
        let known = self.pagers[s].prediction.planes[q.track as usize * self.geo().planes.len() + usize::from(plane)];
        let words = q.blocks().div_ceil(CHUNK) as usize;
        p.marks.clear();
        p.marks.resize(words, 0);
        match kind {
            ScoreKind::Mass => {
                p.top.iter().for_each(|&(index, _)| p.marks[(index / CHUNK) as usize] |= 1 << (index % CHUNK));
            }
            ScoreKind::Query | ScoreKind::Ahead => p.approach(plane, dir, known.last_share),
        }
        let candidates = &p.candidates[usize::from(plane) * p.chunks..][..p.chunks];
        let turn = turn(step);
        p.blocks.clear();
        p.at.clear();
        p.turn.clear();
        for (word, &chunk) in dir[..words].iter().enumerate() {
            let first = word as u32 * CHUNK;
            let count = (q.blocks() - first).min(CHUNK);
            p.blocks.extend_from_slice(&self.chunks().of(chunk)[..count as usize]);
            if kind == ScoreKind::Query {
                continue;
            }
            let there = u32::MAX >> (CHUNK - count);
            // Before the first ranking of a plane, every page is evaluated.
            let named = if known.ranked { candidates[chunk as usize] | p.marks[word] } else { u32::MAX };
            let often = named & there;
            push(first, often, &mut p.at);
            push(first, turn & there & !often, &mut p.turn);
        }
        p.often = p.at.len();
        p.at.extend_from_slice(&p.turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_turn_comes() {
        let turns = u64::from(TURNS);
        for every in [1, 2, 4, 17, 33] {
            for first in (0..100).map(|step| step * every) {
                let steps = (first..).step_by(every as usize).take(2 * turns as usize - 1);
                let seen = steps.fold(0, |seen, step| seen | turn(step));
                assert_eq!(seen, u32::MAX, "from step {first} on, every {every} steps");
            }
        }
        assert!((0..100).all(|step| turn(step).count_ones() == CHUNK / TURNS));
    }

    #[test]
    fn positions_are_those_of_the_bits() {
        let mut at = Vec::new();
        push(32, 0, &mut at);
        push(64, 1 | 1 << 5 | 1 << 31, &mut at);
        assert_eq!(at, [64, 69, 95]);
    }
}

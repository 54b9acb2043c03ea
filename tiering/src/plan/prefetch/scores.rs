//! Scores of engines, checked: a claim that cannot be true is counted and changes nothing.

use crate::api::{Contract, ScoreKind, SeqId, Status};
use crate::space::Core;

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

/// The bits of a binary16 that is at most 0 and no NaN: the logarithm of a share.
fn is_share(bits: u16) -> bool {
    bits == 0 || (0x8000..=0xfc00).contains(&bits)
}

impl Core {
    pub(crate) fn scores(&mut self, s: u16, scores: &Scores<'_>) {
        match self.is_sound(s, scores) {
            true => self.counters.scores += 1,
            false => self.counters.scores_refused += 1,
        }
    }

    fn is_sound(&self, s: u16, scores: &Scores<'_>) -> bool {
        let Some(q) = self.live_seq(s, scores.seq).filter(|q| !q.parked) else { return false };
        usize::from(scores.plane) < self.geo.planes.len()
            && is_share(scores.rest)
            && scores.top.iter().all(|&(index, share)| index < q.blocks && is_share(share))
    }

    /// How much of the sequence its steps must read, from now on.
    pub(crate) fn contract(&mut self, s: u16, seq: SeqId, contract: Contract) -> Status {
        let fits = match contract {
            Contract::Exact => true,
            Contract::Approx { permille } => (1..=1000).contains(&permille),
            Contract::Bounded { ppm } => ppm <= 1_000_000,
        };
        if self.live_seq(s, seq).is_none() {
            return Status::NotFound;
        }
        if !fits {
            return Status::Range;
        }
        self.seq_mut(s, seq).contract = contract;
        Status::Ok
    }
}

//! Attention scores of engines, valid or not.

use super::*;

impl Chaos {
    /// Report scores, mostly of an existing sequence in the order of its steps, sometimes invalid ones.
    pub fn tell_scores(&mut self, s: SessionId, seq: SeqId) {
        if self.rng.one_in(4) {
            return self.tell_nonsense(s);
        }
        let blocks = self.seqs.get(&(s, seq)).map_or(0, |q| q.blocks.len() as u64);
        self.told += 1;
        for plane in 0..self.planes {
            let kind = [ScoreKind::Query, ScoreKind::Ahead, ScoreKind::Ahead][self.rng.below(3) as usize];
            for kind in [kind, ScoreKind::Mass] {
                let first = self.rng.below(blocks.max(1));
                let count = self.rng.below(4).min(blocks.saturating_sub(first));
                let top: Vec<(u32, u16)> =
                    (first..first + count).map(|at| (at as u32, 0xb000 | self.rng.below(0x1000) as u16)).collect();
                let event = Event::Scores { session: s, seq, plane, step: self.told, kind, rest: 0xc400, top: &top };
                self.w.event(event).unwrap();
            }
        }
    }

    fn tell_nonsense(&mut self, s: SessionId) {
        let mut wild = |most: u64| match self.rng.below(6) {
            0 => self.rng.next(),
            _ => self.rng.below(most),
        };
        let (seq, plane, step) = (wild(8) as u32, wild(5) as u16, wild(400));
        let top: Vec<(u32, u16)> = (0..wild(6) % 8).map(|_| (wild(14) as u32, wild(1 << 16) as u16)).collect();
        let kind = [ScoreKind::Mass, ScoreKind::Query, ScoreKind::Ahead][wild(3) as usize % 3];
        let event = Event::Scores { session: s, seq, plane, step, kind, rest: wild(1 << 16) as u16, top: &top };
        self.w.event(event).unwrap();
    }
}

//! What engines may say of attention, true or not.

use super::*;

impl Chaos {
    pub fn tell_scores(&mut self, s: SessionId, seq: SeqId) {
        let step = self.rng.below(200);
        for plane in 0..self.planes {
            let count = self.rng.below(6);
            let top: Vec<(u32, u16)> =
                (0..count).map(|_| (self.rng.below(14) as u32, 0xb000 | self.rng.below(0x1000) as u16)).collect();
            let kind = [ScoreKind::Mass, ScoreKind::Query, ScoreKind::Ahead][self.rng.below(3) as usize];
            self.w.event(Event::Scores { session: s, seq, plane, step, kind, rest: 0xbc00, top: &top }).unwrap();
        }
    }
}

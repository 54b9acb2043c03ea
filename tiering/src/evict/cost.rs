//! What it saves that a content is kept: the time to compute it again, less the time to load it.
//!
//! A token takes its share of the model's weights, wherever it stands, and attention over all tokens before it: computing `n` tokens
//! at position `p` again takes `n / rate × (1 + p / half)`, `half` being where attention costs as much as the rest. So contents
//! are told apart by depth, in few *bands*: within one they save about the same, and the heads of its queues can be compared without a
//! search. All contents of a space have as many bytes, so that what one saves per byte is in the same order as what it saves.

use crate::api::Retention;
use serde::{Deserialize, Serialize};

/// Bands of depth.
pub(crate) const BANDS: usize = 4;
/// What computing costs at the end of a band by what it costs at its beginning; the last band has no end. 128 Ki tokens of an 8B
/// model with attention over all of them cost 5.4 times as much as the first ones.
const STEP: f64 = 1.6;
/// Its square root: what computing costs in the middle of a band, by what it costs at its beginning.
const MIDDLE: f64 = 1.265;
/// What is saved at the least, as a share of computing: little, so that what is loaded as slowly as it is computed goes before other
/// content, and of it what is least likely to be used again; and not nothing, for a disk is measured now slower and now faster,
/// and what a service uses all the time must not go before what it never uses.
const LEAST: f64 = 0.05;

/// What hits save, by band.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Costs {
    /// Tokens of a content.
    tokens: f64,
    recompute_tokens_per_s: u32,
    attention_doubles_at: u32,
    /// Microseconds that loading a content takes; 0: not known yet.
    load_us: f64,
    /// Microseconds that a hit saves.
    saved_us: [f64; BANDS],
}

impl Costs {
    /// For contents of so many tokens.
    pub fn new(tokens: u32, retention: Retention) -> Costs {
        let mut costs = Costs {
            tokens: tokens.into(),
            recompute_tokens_per_s: 0,
            attention_doubles_at: 0,
            load_us: 0.0,
            saved_us: [1.0; BANDS],
        };
        costs.configure(retention);
        costs
    }

    /// What computing costs is another from now on.
    pub fn configure(&mut self, retention: Retention) {
        self.recompute_tokens_per_s = retention.recompute_tokens_per_s;
        self.attention_doubles_at = retention.attention_doubles_at;
        self.weigh();
    }

    /// Loading a content takes so many microseconds from now on.
    pub fn set_load(&mut self, load_us: f64) {
        self.load_us = load_us;
        self.weigh();
    }

    fn weigh(&mut self) {
        // Without a rate nobody knows what computing takes: every hit is worth as much as any other.
        if self.recompute_tokens_per_s == 0 {
            self.saved_us = [1.0; BANDS];
            return;
        }
        let first_us = self.tokens * 1e6 / f64::from(self.recompute_tokens_per_s);
        let mut cost = MIDDLE;
        for us in &mut self.saved_us {
            *us = (first_us * cost - self.load_us).max(first_us * cost * LEAST);
            cost *= STEP;
        }
    }

    /// The band of a content before which so many tokens stand.
    pub fn band(&self, position: u64) -> u8 {
        if self.attention_doubles_at == 0 {
            return 0;
        }
        let cost = 1.0 + position as f64 / f64::from(self.attention_doubles_at);
        let (mut band, mut end) = (0, STEP);
        while cost >= end && usize::from(band) + 1 < BANDS {
            band += 1;
            end *= STEP;
        }
        band
    }

    /// Microseconds that a hit saves, by band.
    pub fn saved_us(&self) -> &[f64; BANDS] {
        &self.saved_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETENTION: Retention =
        Retention { recompute_tokens_per_s: 10_000, attention_doubles_at: 1_000, ..Retention::DEFAULT };

    #[test]
    fn a_band_ends_where_computing_costs_more_by_a_step() {
        let costs = Costs::new(100, RETENTION);
        let bands = [0, 599, 601, 1_559, 1_561, 3_095, 3_097, u64::MAX].map(|position| costs.band(position));
        assert_eq!(bands, [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(Costs::new(100, Retention { attention_doubles_at: 0, ..RETENTION }).band(u64::MAX), 0);
    }

    #[test]
    fn what_is_saved_is_computing_less_loading() {
        let mut costs = Costs::new(100, RETENTION);
        let before = *costs.saved_us();
        // 100 tokens at 10,000 a second, in the middle of a band.
        let expected = [12_650.0, 20_240.0, 32_384.0, 51_814.4];
        assert!(before.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{before:?}");
        costs.set_load(20_000.0);
        let [none, some, ..] = *costs.saved_us();
        assert!((none - 632.5).abs() < 1e-6, "loading is dearer: {none}");
        assert!((some - 1_012.0).abs() < 1e-6, "{some}");
        costs.configure(Retention { recompute_tokens_per_s: 0, ..RETENTION });
        assert_eq!(*costs.saved_us(), [1.0; BANDS], "nobody knows what computing takes");
    }
}

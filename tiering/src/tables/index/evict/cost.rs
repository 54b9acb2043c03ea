//! Time saved by keeping an entry: the time to recompute it, less the time to load it.
//!
//! Computing a token costs a fixed share for the model's weights, and attention over all tokens before it. Recomputing `n` tokens
//! at position `p` takes `n / rate × (1 + p / half)`, where `half` is the position at which attention costs as much as the rest.
//! Entries are therefore grouped by depth into a few *bands*. Within a band they save about the same, so the heads of its queues
//! can be compared without a search. All entries of a space have the same size, so savings per byte and savings per entry have
//! the same order.

use crate::api::Retention;
use serde::{Deserialize, Serialize};

/// Number of depth bands.
pub(crate) const BANDS: usize = 4;
/// Ratio of the compute cost at the end of a band to that at its beginning; the last band has no end. In an 8B model, tokens at
/// the end of a 128 Ki context cost 5.4 times as much as the first ones.
const STEP: f64 = 1.6;
/// Square root of [`STEP`]: ratio of the compute cost in the middle of a band to that at its beginning.
const MIDDLE: f64 = 1.265;
/// Smallest saving, as a share of the compute cost. It is small: entries that load as slowly as they are computed are evicted
/// before others, those least likely to be reused first. It is not zero: measured disk speed varies, and an entry in constant use
/// must not be evicted before one that is never used.
const LEAST: f64 = 0.05;

/// Time saved by hits, by band.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Costs {
    /// Tokens of an entry.
    tokens: f64,
    recompute_tokens_per_s: u32,
    attention_doubles_at: u32,
    /// Time to load an entry, in microseconds; 0: not known yet.
    load_us: f64,
    /// Time saved by a hit, in microseconds, by band.
    saved_us: [f64; BANDS],
}

impl Costs {
    /// Create the costs for entries of `tokens` tokens each.
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

    /// Change the compute cost.
    pub fn configure(&mut self, retention: Retention) {
        self.recompute_tokens_per_s = retention.recompute_tokens_per_s;
        self.attention_doubles_at = retention.attention_doubles_at;
        self.weigh();
    }

    /// Set the time to load an entry, in microseconds.
    pub fn set_load(&mut self, load_us: f64) {
        self.load_us = load_us;
        self.weigh();
    }

    fn weigh(&mut self) {
        // Without a rate the compute time is unknown: all hits have the same value.
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

    /// Return the band of an entry with `position` tokens before it.
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

    /// Return the time saved by a hit, in microseconds, by band.
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
        // 100 tokens at 10,000 tokens/s, in the middle of a band.
        let expected = [12_650.0, 20_240.0, 32_384.0, 51_814.4];
        assert!(before.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{before:?}");
        costs.set_load(20_000.0);
        let [none, some, ..] = *costs.saved_us();
        assert!((none - 632.5).abs() < 1e-6, "loading takes longer than computing: {none}");
        assert!((some - 1_012.0).abs() < 1e-6, "{some}");
        costs.configure(Retention { recompute_tokens_per_s: 0, ..RETENTION });
        assert_eq!(*costs.saved_us(), [1.0; BANDS], "compute time is unknown");
    }
}

//! Limits of what may be moved until when. Bandwidth is measured when loads end. The part of it that predictions may use grows in
//! steps while they are correct and in time, and is halved when they are not (AIMD). The margin by which a page must win adapts in
//! the same way.

use serde::{Deserialize, Serialize};

/// Weight of a new sample in moving averages.
const BLEND: f32 = 0.125;
/// Minimum share of the bandwidth that predictions keep, so that they can recover.
const SHARE_MIN: f32 = 1.0 / 16.0;
/// Increase of the share per judgement.
const SHARE_STEP: f32 = 1.0 / 16.0;
/// Number of loads per judgement.
const LOADS_OBSERVED: u32 = 32;
/// Below this share of useful loads, predictions cost more than they gain.
const PRECISION_MIN: f32 = 0.4;
/// Above this share of late loads, more loads are in flight than the link can carry.
const LATE_MAX: f32 = 0.2;
/// Minimum and maximum of the margin, as a logarithm, by which a page's predicted share must exceed that of the page that it
/// replaces.
pub(super) const MARGIN_MIN: f32 = 0.1;
const MARGIN_MAX: f32 = 0.7;
const MARGIN_STEP: f32 = 0.05;

/// Limits of predictions, adapted to their results.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Trust {
    /// Share of the bandwidth, 0 to 1.
    pub share: f32,
    /// Margin by which a page's predicted logarithm must exceed a resident one's.
    pub margin: f32,
    used: u32,
    wasted: u32,
    late: u32,
}

impl Default for Trust {
    fn default() -> Self {
        Trust { share: 1.0, margin: MARGIN_MIN, used: 0, wasted: 0, late: 0 }
    }
}

/// Outcome of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Used,
    Wasted,
    Late,
}

impl Trust {
    pub fn observe(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Used => self.used += 1,
            Outcome::Wasted => self.wasted += 1,
            Outcome::Late => self.late += 1,
        }
        let all = self.used + self.wasted + self.late;
        if all < LOADS_OBSERVED {
            return;
        }
        let judged = self.used + self.wasted;
        let precise = self.used as f32 >= PRECISION_MIN * judged as f32;
        let in_time = self.late as f32 <= LATE_MAX * all as f32;
        self.share = match precise && in_time {
            true => (self.share + SHARE_STEP).min(1.0),
            false => (self.share / 2.0).max(SHARE_MIN),
        };
        self.margin = match precise {
            true => (self.margin - MARGIN_STEP).max(MARGIN_MIN),
            false => (2.0 * self.margin).min(MARGIN_MAX),
        };
        (self.used, self.wasted, self.late) = (0, 0, 0);
    }
}

/// Moving average of the share, as a logarithm, of the last page of a plane that is worth a load. `None` before the first ranking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Level(Option<f32>);

impl Level {
    /// Update the level after a ranking and return it. An infinite value (only pages that are always kept) is ignored.
    pub fn seen(&mut self, last: f32) -> Option<f32> {
        if last.is_finite() {
            let mean = self.0.unwrap_or(last);
            self.0 = Some(mean + BLEND * (last - mean));
        }
        self.0
    }
}

/// Threshold of a frame, in relation to the levels of all planes. It moves frames to where attention is, but not from planes that miss
/// little to planes that miss much in any case. It rises while fewer pages are released than loads need frames, and falls while
/// more are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Threshold {
    /// Threshold above the counted part of a plane's level, as a logarithm.
    ln: f32,
    /// Average over the planes of the part of their levels that is not counted.
    level: Level,
    /// Averages per ranking of the pages released (`supply`) and the frames needed (`demand`).
    supply: f32,
    demand: f32,
}

/// Exponent with which the level of a plane enters its threshold. At 0 frames go wherever the share is larger, so planes with
/// little attention outside a few pages keep only those. At 1 every plane has an equal part, so a uniformly flat plane has frames
/// of no special value. In between both lose little (docs/design/prefetch.md has figures).
const EVENNESS: f32 = 0.75;
/// Change of the threshold per ranking.
const THRESHOLD_STEP: f32 = 0.05;
/// Range of the threshold around the planes' average level.
const THRESHOLD_RANGE: (f32, f32) = (-3.0, 1.0);

impl Threshold {
    /// Return the threshold of a plane: the share, as a logarithm, that makes a page worth a frame.
    pub fn value(&mut self, level: Option<f32>) -> f32 {
        let Some(level) = level else { return f32::NEG_INFINITY };
        let above = (1.0 - EVENNESS) * level;
        let first = self.level == Level::default();
        if let Some(mean) = self.level.seen(above) {
            self.ln = if first { mean } else { self.ln.clamp(mean + THRESHOLD_RANGE.0, mean + THRESHOLD_RANGE.1) };
        }
        self.ln + EVENNESS * level
    }

    /// Update the threshold after a ranking in which `supply` pages were released and `demand` frames were needed.
    pub fn traded(&mut self, supply: usize, demand: usize) {
        self.supply += BLEND * (supply as f32 - self.supply);
        self.demand += BLEND * (demand as f32 - self.demand);
        self.ln += if self.supply < self.demand { THRESHOLD_STEP } else { -THRESHOLD_STEP };
    }
}

/// A moving average of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pace {
    /// Microseconds; 0: not measured yet.
    pub us: u64,
}

impl Pace {
    pub fn add(&mut self, us: u64) {
        self.us = if self.us == 0 { us } else { (7 * self.us + us) / 8 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_rises_while_frames_are_short_within_bounds() {
        let mut threshold = Threshold::default();
        assert_eq!(threshold.value(None), f32::NEG_INFINITY, "no level is known");
        assert_eq!(threshold.value(Some(-4.0)), -4.0);
        let mut trade = |supply, demand| {
            threshold.traded(supply, demand);
            threshold.value(Some(-4.0))
        };
        assert!((0..10).map(|_| trade(2, 8)).last() > Some(-4.0));
        assert_eq!((0..1000).map(|_| trade(2, 8)).last(), Some(-3.0));
        assert_eq!((0..1000).map(|_| trade(20, 8)).last(), Some(-7.0));
    }

    #[test]
    fn a_plane_of_which_little_is_missed_keeps_smaller_shares() {
        let mut threshold = Threshold::default();
        let (mut easy, mut hard) = (Level::default(), Level::default());
        for _ in 0..100 {
            easy.seen(-8.0);
            hard.seen(-4.0);
        }
        assert_eq!(easy.seen(f32::INFINITY), easy.seen(-8.0));
        let (easy, hard) = (threshold.value(easy.seen(-8.0)), threshold.value(hard.seen(-4.0)));
        let apart = hard - easy;
        assert!(0.5 * 4.0 < apart && apart < 4.0, "{easy} and {hard}");
    }

    #[test]
    fn trust_is_lost_fast_and_won_back_slowly() {
        let mut trust = Trust::default();
        let mut observe = |outcome, rounds: u32| {
            (0..rounds * LOADS_OBSERVED).for_each(|_| trust.observe(outcome));
            (trust.share, trust.margin)
        };
        assert_eq!(observe(Outcome::Used, 3), (1.0, MARGIN_MIN));
        assert_eq!(observe(Outcome::Wasted, 2), (0.25, 4.0 * MARGIN_MIN));
        assert_eq!(observe(Outcome::Wasted, 9), (SHARE_MIN, MARGIN_MAX));
        let (share, margin) = observe(Outcome::Used, 4);
        assert!(share == SHARE_MIN + 4.0 * SHARE_STEP && margin < MARGIN_MAX);
        let (later, same) = observe(Outcome::Late, 1);
        assert!(later < share && same < margin, "lateness does not raise the margin");
    }
}

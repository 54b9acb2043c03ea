//! How much may be moved until when. Bandwidth is measured where loads end; what of it predictions may use grows by steps while they
//! come true and in time, and shrinks by half when they do not (AIMD); so does the margin that a page must win by.

use serde::{Deserialize, Serialize};

/// Weight of a new sample in moving averages.
const BLEND: f32 = 0.125;
/// Weight of a rate below what was measured before: few loads at once measure the latency of one, not what the link carries.
const BLEND_DOWN: f32 = 1.0 / 64.0;
/// Least share of what the bandwidth allows that predictions keep, so that they can prove better again.
const SHARE_MIN: f32 = 1.0 / 16.0;
/// What the share grows by per judgement.
const SHARE_STEP: f32 = 1.0 / 16.0;
/// Loads that one judgement is passed on.
const LOADS_JUDGED: u32 = 32;
/// Below this share of loads that were of use, predictions cost more than they bring.
const PRECISION_MIN: f32 = 0.4;
/// Above this share of loads that came too late, there is more under way than the link carries.
const LATE_MAX: f32 = 0.2;
/// What a page's predicted share must exceed that of the one that it takes the place of by, as a logarithm: at least and at most.
pub(super) const MARGIN_MIN: f32 = 0.1;
const MARGIN_MAX: f32 = 0.7;
const MARGIN_STEP: f32 = 0.05;

/// What moves between one tier and the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Link {
    /// Bytes a microsecond; 0: not measured yet.
    pub rate: f32,
    /// Bytes of loads in flight.
    pub in_flight: u64,
    /// Bytes that ended since `since`.
    ended: u64,
    since: u64,
}

impl Link {
    pub fn begin(&mut self, now: u64, bytes: u32) {
        if self.in_flight == 0 {
            (self.since, self.ended) = (now, 0);
        }
        self.in_flight += u64::from(bytes);
    }

    /// A load ended, well or not: bytes over the time that the link was busy.
    pub fn end(&mut self, now: u64, bytes: u32, moved: bool) {
        self.in_flight = self.in_flight.saturating_sub(u64::from(bytes));
        self.ended += if moved { u64::from(bytes) } else { 0 };
        let took = now.saturating_sub(self.since);
        if took > 0 && self.ended > 0 {
            let sample = self.ended as f32 / took as f32;
            let blend = if sample > self.rate { 0.5 } else { BLEND_DOWN };
            self.rate = if self.rate == 0.0 { sample } else { self.rate + blend * (sample - self.rate) };
            (self.since, self.ended) = (now, 0);
        }
    }

    /// Bytes that it carries within so many microseconds, beside what it carries already.
    pub fn carries(&self, us: u64) -> u64 {
        ((self.rate * us as f32) as u64).saturating_sub(self.in_flight)
    }
}

/// What predictions may use, by how they did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Trust {
    /// Share of the bandwidth, 0 to 1.
    pub share: f32,
    /// What a page's predicted logarithm must exceed a resident one's by.
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

/// What became of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Used,
    Wasted,
    Late,
}

impl Trust {
    pub fn judge(&mut self, fate: Fate) {
        match fate {
            Fate::Used => self.used += 1,
            Fate::Wasted => self.wasted += 1,
            Fate::Late => self.late += 1,
        }
        let all = self.used + self.wasted + self.late;
        if all < LOADS_JUDGED {
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

/// What the last page of a plane that is worth a load gets, as a logarithm, on the average. None before anything was ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Level(Option<f32>);

impl Level {
    /// The plane was ranked; its level. An infinite one (nothing but pages that must stay) says nothing.
    pub fn seen(&mut self, last: f32) -> Option<f32> {
        if last.is_finite() {
            let mean = self.0.unwrap_or(last);
            self.0 = Some(mean + BLEND * (last - mean));
        }
        self.0
    }
}

/// What a frame is worth, above all planes' levels: so that frames are where attention is, but not from planes of which little is
/// missed to planes of which much is missed in any case. It rises while fewer pages are let go than loads need frames, and falls
/// while there are more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Price {
    /// Above the part of the level that counts, as a logarithm.
    ln: f32,
    /// That part taken off the planes' levels, on the average.
    level: Level,
    /// Pages let go and frames needed, a ranking, on the average.
    supply: f32,
    demand: f32,
}

/// A share of attention counts by what is missed of its plane to this power: at 0 frames go wherever the share is larger, so that
/// planes of little attention outside of a few pages are left with those; at 1 every plane has an even part, so that a plane
/// that is flat throughout has frames no better than any. Between them both lose little (docs/design/prefetch.md has figures).
const EVENNESS: f32 = 0.75;
/// A ranking moves the price by so much.
const PRICE_STEP: f32 = 0.05;
/// The price stays within these of the planes' average level.
const PRICE_RANGE: (f32, f32) = (-3.0, 1.0);

impl Price {
    /// What a page of a plane of this level must get to be worth a frame.
    pub fn bar(&mut self, level: Option<f32>) -> f32 {
        let Some(level) = level else { return f32::NEG_INFINITY };
        let above = (1.0 - EVENNESS) * level;
        let first = self.level == Level::default();
        if let Some(mean) = self.level.seen(above) {
            self.ln = if first { mean } else { self.ln.clamp(mean + PRICE_RANGE.0, mean + PRICE_RANGE.1) };
        }
        self.ln + EVENNESS * level
    }

    /// So many pages were let go, and so many frames are needed.
    pub fn traded(&mut self, supply: usize, demand: usize) {
        self.supply += BLEND * (supply as f32 - self.supply);
        self.demand += BLEND * (demand as f32 - self.demand);
        self.ln += if self.supply < self.demand { PRICE_STEP } else { -PRICE_STEP };
    }
}

/// A moving average of times.
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
    fn a_link_is_measured_while_it_is_busy() {
        let mut link = Link::default();
        assert_eq!(link.carries(1000), 0);
        for round in 0..50 {
            let at = round * 10_000; // idle in between
            link.begin(at, 4000);
            link.begin(at, 4000);
            link.end(at + 100, 4000, true);
            link.end(at + 200, 4000, true);
        }
        assert!((link.rate - 40.0).abs() < 0.5, "{link:?}");
        assert_eq!(link.carries(100), 4000);
        link.begin(1 << 20, 3000);
        assert_eq!((link.carries(100), link.carries(10)), (1000, 0));
    }

    #[test]
    fn what_fails_moves_nothing() {
        let mut link = Link::default();
        link.begin(0, 4000);
        link.end(100, 4000, false);
        assert_eq!((link.rate, link.in_flight), (0.0, 0));
    }

    #[test]
    fn the_price_rises_while_frames_are_short_within_bounds() {
        let mut price = Price::default();
        assert_eq!(price.bar(None), f32::NEG_INFINITY, "nothing is known");
        assert_eq!(price.bar(Some(-4.0)), -4.0);
        let mut trade = |supply, demand| {
            price.traded(supply, demand);
            price.bar(Some(-4.0))
        };
        assert!((0..10).map(|_| trade(2, 8)).last() > Some(-4.0));
        assert_eq!((0..1000).map(|_| trade(2, 8)).last(), Some(-3.0));
        assert_eq!((0..1000).map(|_| trade(20, 8)).last(), Some(-7.0));
    }

    #[test]
    fn a_plane_of_which_little_is_missed_keeps_smaller_shares() {
        let mut price = Price::default();
        let (mut easy, mut hard) = (Level::default(), Level::default());
        for _ in 0..100 {
            easy.seen(-8.0);
            hard.seen(-4.0);
        }
        assert_eq!(easy.seen(f32::INFINITY), easy.seen(-8.0));
        let (easy, hard) = (price.bar(easy.seen(-8.0)), price.bar(hard.seen(-4.0)));
        let apart = hard - easy;
        assert!(0.5 * 4.0 < apart && apart < 4.0, "{easy} and {hard}");
    }

    #[test]
    fn trust_is_lost_fast_and_won_back_slowly() {
        let mut trust = Trust::default();
        let mut judge = |fate, rounds: u32| {
            (0..rounds * LOADS_JUDGED).for_each(|_| trust.judge(fate));
            (trust.share, trust.margin)
        };
        assert_eq!(judge(Fate::Used, 3), (1.0, MARGIN_MIN));
        assert_eq!(judge(Fate::Wasted, 2), (0.25, 4.0 * MARGIN_MIN));
        assert_eq!(judge(Fate::Wasted, 9), (SHARE_MIN, MARGIN_MAX));
        let (share, margin) = judge(Fate::Used, 4);
        assert!(share == SHARE_MIN + 4.0 * SHARE_STEP && margin < MARGIN_MAX);
        let (later, same) = judge(Fate::Late, 1);
        assert!(later < share && same < margin, "late is not wrong: the margin shrinks on");
    }
}

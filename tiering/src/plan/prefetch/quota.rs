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
const MARGIN_MIN: f32 = 0.1;
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

/// What a frame is worth, as the logarithm of a predicted share: one price for all planes, so that frames are where attention is.
/// It rises while fewer pages are below it than loads need frames, and falls while there are more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Price {
    pub ln: f32,
    /// What the last page of a plane's even part is predicted to get, on the average.
    level: f32,
    /// Pages let go and frames needed, a ranking, on the average.
    supply: f32,
    demand: f32,
}

/// A ranking moves the price by so much.
const PRICE_STEP: f32 = 0.05;
/// Frames let go for each that is needed: what is let go is not taken at once, nor in order.
const SUPPLY: f32 = 1.5;
/// The price stays within these of the planes' average level.
const PRICE_RANGE: (f32, f32) = (-3.0, 1.0);

impl Price {
    pub fn new(level: f32) -> Price {
        Price { ln: level, level, supply: 0.0, demand: 0.0 }
    }

    pub fn ranked(&mut self, level: f32, supply: usize, demand: usize) {
        let blend = |mean: &mut f32, sample: f32| *mean += BLEND * (sample - *mean);
        if level.is_finite() {
            blend(&mut self.level, level);
        }
        blend(&mut self.supply, supply as f32);
        blend(&mut self.demand, demand as f32);
        let short = self.supply < SUPPLY * self.demand;
        let to = self.ln + if short { PRICE_STEP } else { -PRICE_STEP };
        self.ln = to.clamp(self.level + PRICE_RANGE.0, self.level + PRICE_RANGE.1);
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
        let mut price = Price::new(-4.0);
        (0..10).for_each(|_| price.ranked(-4.0, 2, 8));
        let high = price.ln;
        assert!(high > -4.0);
        (0..1000).for_each(|_| price.ranked(-4.0, 2, 8));
        assert_eq!(price.ln, -3.0);
        (0..1000).for_each(|_| price.ranked(-4.0, 20, 8));
        assert_eq!(price.ln, -7.0);
        price.ranked(f32::INFINITY, 0, 0);
        assert!(price.ln.is_finite());
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

//! What is remembered of a page: logarithms of shares, in steps of 1/2048.

use super::Kind;
use serde::{Deserialize, Serialize};

/// Shares below e^-15.9 count as this.
pub(super) const LEAST: f32 = -15.9;
const STEPS: f32 = 2048.0;
/// Its steps.
pub(super) const FLOOR: i16 = -32563;
/// What a page is taken for of which nothing was seen: about one part in a thousand.
const UNSEEN: i16 = -7 * 2048;

/// A score entry, its indices turned into positions.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// What the shares are.
    pub kind: Kind,
    /// The step that they belong to.
    pub step: u64,
    /// Share of all pages that `top` does not name, 0 to 1.
    pub rest: f32,
    /// Position in `pages`, and the natural logarithm of its share.
    pub top: &'a [(u32, f32)],
}

/// Values kept of a page.
pub(super) const VALUES: usize = 8;
/// Share at the last step seen.
pub(super) const LAST: usize = 0;
/// Moving averages of the share's logarithm, over about three steps and about twenty.
pub(super) const FAST: usize = 1;
pub(super) const SLOW: usize = 2;
/// Largest share, decaying.
pub(super) const PEAK: usize = 3;
/// What a guess of the coming step's query gives, if there is one.
pub(super) const AHEAD: usize = 4;
/// What the digests said of the last step's query.
pub(super) const QUERY: usize = 5;
/// Moving average of how far the page's shares lie above what its digest says.
pub(super) const BIAS: usize = 6;
/// What the digests say of a query whose attention has not been seen yet; no feature.
pub(super) const FRESH: usize = 7;

/// Rates of moving averages, in 1/32768.
const FAST_RATE: i32 = 9830;
const SLOW_RATE: i32 = 1638;
const BIAS_RATE: i32 = 9830;
const PEAK_DECAY: i16 = 102; // 0.05
/// A page that was not read and has no digest drifts towards the mean share by this part a step, until it is read again and its
/// share is known: so that nothing stays unread because it was not read.
const DRIFT: i32 = 655; // 0.02

/// 16 bytes a page.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Page {
    pub values: [i16; VALUES],
}

const _: () = assert!(size_of::<Page>() == 16);

/// The nearest step.
pub(super) fn fixed(value: f32) -> i16 {
    // A cast saturates and turns NaN into 0; no logarithm of a share gets there.
    (value * STEPS + if value < 0.0 { -0.5 } else { 0.5 }) as i16
}

/// The value of a number of steps.
pub(super) fn real(steps: i16) -> f32 {
    f32::from(steps) * (1.0 / STEPS)
}

/// From `value` towards `target` by a part of 32768. Both are 16 bits, so the difference times the rate fits, and so does the result.
fn towards(value: i16, target: i32, rate: i32) -> i16 {
    let value = i32::from(value);
    (value + (((target - value) * rate + (1 << 14)) >> 15)) as i16
}

impl Page {
    /// A page of which nothing was seen.
    pub const UNSEEN: Page = {
        let mut values = [UNSEEN; VALUES];
        values[BIAS] = 0;
        Page { values }
    };

    /// The page's share at a step is `share`. `read`: as attention saw it, and not as an estimate.
    pub fn saw(&mut self, share: i16, read: bool, with_query: bool) {
        let v = &mut self.values;
        let of = i32::from(share);
        v[FAST] = towards(v[FAST], of, FAST_RATE);
        v[SLOW] = towards(v[SLOW], of, SLOW_RATE);
        v[PEAK] = share.max(v[PEAK].saturating_sub(PEAK_DECAY));
        v[LAST] = share;
        if with_query {
            let above = towards(v[BIAS], of - i32::from(v[FRESH]), BIAS_RATE);
            v[BIAS] = if read { above } else { v[BIAS] };
            v[QUERY] = v[FRESH];
        }
    }

    /// The share of a page that was not named: what its digest says, or its part of the rest; with no rest it was not read, and
    /// what it once got drifts to `mean`.
    pub fn unread(&self, with_query: bool, rest: i16, mean: i16) -> i16 {
        if with_query {
            return self.values[FRESH];
        }
        if rest > FLOOR {
            return rest;
        }
        let last = self.values[LAST];
        towards(last, i32::from(last.max(mean)), DRIFT)
    }
}

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

/// The pages of a sequence in one plane, and which of them are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    /// The block of each position.
    pub blocks: &'a [u32],
    /// Positions that are looked at every time, ascending.
    pub often: &'a [u32],
    /// Of the others those whose turn it is, ascending: one in [`TURNS`], each once in as many steps.
    pub turn: &'a [u32],
}

/// Steps in which each page's turn comes.
pub const TURNS: u32 = 8;

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
/// What the digests say of a query whose attention has not been seen yet, if they name the page, or [`UNSAID`]; no feature.
pub(super) const FRESH: usize = 7;

/// Nothing was said; no share.
pub(super) const UNSAID: i16 = i16::MIN;

/// How fast values follow, in 1/32768.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    fast: i32,
    slow: i32,
    /// A page that was not read and has no digest drifts towards the mean share by this part, until it is read again and its
    /// share is known: so that nothing stays unread because it was not read.
    drift: i32,
    /// What the largest share decays by, in steps of a value.
    decay: i16,
}

/// Of pages that are looked at at every step.
pub(super) const OFTEN: Rates = Rates { fast: 9830, slow: 1638, drift: 655, decay: 102 };
/// Of pages that are looked at once in [`TURNS`] steps: 1 - (1 - rate)^TURNS.
pub(super) const IN_TURN: Rates = Rates { fast: 30879, slow: 11027, drift: 4888, decay: 816 };
const BIAS_RATE: i32 = 9830;

/// 16 bytes a page.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Page {
    pub values: [i16; VALUES],
}

const _: () = assert!(size_of::<Page>() == 16);

/// The nearest step of a number between -16 and 16, of two the even one.
pub(super) fn fixed(value: f32) -> i16 {
    // Adding 1.5 × 2^23 rounds to an integer, which then stands in the lowest bits: a cast has to look for what does not fit.
    const ROUND: f32 = 12_582_912.0;
    (value * STEPS + ROUND).to_bits() as i16
}

/// The steps of a share's logarithm; what is no number is no share.
pub(super) fn share(ln: f32) -> i16 {
    let floored = if ln > LEAST { ln } else { LEAST };
    fixed(if floored < 0.0 { floored } else { 0.0 })
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
        (values[BIAS], values[FRESH]) = (0, UNSAID);
        Page { values }
    };

    /// What the digests say of the query whose attention comes next; `rest` of those that they do not name.
    pub fn fresh(&self, rest: i16) -> i16 {
        match self.values[FRESH] {
            UNSAID => rest,
            fresh => fresh,
        }
    }

    /// The page's share at a step is `share`.
    pub fn saw(&mut self, share: i16, rates: &Rates) {
        let v = &mut self.values;
        let of = i32::from(share);
        v[FAST] = towards(v[FAST], of, rates.fast);
        v[SLOW] = towards(v[SLOW], of, rates.slow);
        v[PEAK] = share.max(v[PEAK].saturating_sub(rates.decay));
        v[LAST] = share;
    }

    /// The same, and digests had said `fresh`. `read`: the share is what attention saw, and not an estimate.
    pub fn saw_beside(&mut self, share: i16, read: bool, fresh: i16, rates: &Rates) {
        let bias = self.values[BIAS];
        let above = towards(bias, i32::from(share) - i32::from(fresh), BIAS_RATE);
        self.saw(share, rates);
        let v = &mut self.values;
        v[BIAS] = if read { above } else { bias };
        (v[QUERY], v[FRESH]) = (fresh, UNSAID);
    }

    /// The share of a page that was not named and of which no digest says anything: its part of the rest; with no rest it was not
    /// read, and what it once got drifts to `mean`.
    pub fn unread(&self, rest: i16, mean: i16, rates: &Rates) -> i16 {
        if rest > FLOOR {
            return rest;
        }
        let last = self.values[LAST];
        towards(last, i32::from(last.max(mean)), rates.drift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_go_to_the_nearest_step_and_nonsense_to_no_share() {
        for i in -159_000..=0 {
            let ln = i as f32 / 10_000.0;
            assert!((real(share(ln)) - ln).abs() <= 0.5 / STEPS + 1e-6, "{ln}: {}", share(ln));
        }
        assert_eq!((fixed(3.0 / 4096.0), fixed(5.0 / 4096.0), fixed(-3.0 / 4096.0)), (2, 2, -2));
        assert_eq!(
            (share(LEAST), share(f32::NEG_INFINITY), share(f32::NAN), share(-65_504.0)),
            (FLOOR, FLOOR, FLOOR, FLOOR)
        );
        assert_eq!((share(1.0), share(f32::INFINITY), share(-0.0)), (0, 0, 0));
    }
}

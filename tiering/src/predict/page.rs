//! Values stored per page: logarithms of shares, in steps of 1/2048.

use kvtide_types::ScoreKind;
use serde::{Deserialize, Serialize};

/// Smaller shares than e^-15.9 count as this.
pub(super) const LEAST: f32 = -15.9;
const STEPS: f32 = 2048.0;
/// The same in steps.
pub(super) const FLOOR: i16 = -32563;
/// Initial value of a page without observations: about one part in a thousand.
const UNSEEN: i16 = -7 * 2048;

/// A score entry, with page indices converted to positions.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Meaning of the shares.
    pub kind: ScoreKind,
    /// Step that the shares belong to.
    pub step: u64,
    /// Total share of all pages that are not in `top`, 0 to 1.
    pub rest: f32,
    /// Position in `pages`, and the natural logarithm of its share.
    pub top: &'a [(u32, f32)],
}

/// Pages of a sequence in one plane, and those to evaluate.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    /// The block of each position.
    pub blocks: &'a [u32],
    /// Positions evaluated at every step, ascending.
    pub often: &'a [u32],
    /// Positions of the other pages evaluated at this step, ascending: one in [`TURNS`], each once in that number of steps.
    pub turn: &'a [u32],
}

/// Number of steps in which each of the other pages is evaluated once.
pub const TURNS: u32 = 8;

/// Number of values per page.
pub(super) const VALUES: usize = 8;
/// Share at the last observed step.
pub(super) const LAST: usize = 0;
/// Moving averages of the share's logarithm, over about three steps and about twenty.
pub(super) const FAST: usize = 1;
pub(super) const SLOW: usize = 2;
/// Largest share, decaying.
pub(super) const PEAK: usize = 3;
/// Estimate for a guess of the coming step's query, if there is one.
pub(super) const AHEAD: usize = 4;
/// Estimate of the digests for the last step's query.
pub(super) const QUERY: usize = 5;
/// Moving average of the difference between the page's shares and its digest's estimates.
pub(super) const BIAS: usize = 6;
/// Estimate of the digests for a query before its attention is observed, if they name the page, or [`UNSAID`]; not a
/// feature.
pub(super) const FRESH: usize = 7;

/// No estimate; not a share.
pub(super) const UNSAID: i16 = i16::MIN;

/// Rates at which values follow observations, in 1/32768.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    fast: i32,
    slow: i32,
    /// A page that was not read and has no digest drifts towards the mean share by this part, until it is read again and its share
    /// is known. Without the drift, an unread page would stay unread forever.
    drift: i32,
    /// Decay of the largest share, in steps of a value.
    decay: i16,
}

/// Rates of pages evaluated at every step.
pub(super) const OFTEN: Rates = Rates { fast: 9830, slow: 1638, drift: 655, decay: 102 };
/// Rates of pages evaluated once in [`TURNS`] steps: 1 - (1 - rate)^TURNS.
pub(super) const IN_TURN: Rates = Rates { fast: 30879, slow: 11027, drift: 4888, decay: 816 };
const BIAS_RATE: i32 = 9830;

/// 16 bytes per page.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Page {
    pub values: [i16; VALUES],
}

const _: () = assert!(size_of::<Page>() == 16);

/// Round a number between -16 and 16 to steps, ties to even.
pub(super) fn fixed(value: f32) -> i16 {
    // Adding 1.5 × 2^23 rounds to an integer in the lowest bits. A cast would have to check the range.
    const ROUND: f32 = 12_582_912.0;
    (value * STEPS + ROUND).to_bits() as i16
}

/// Convert a share's logarithm to steps; NaN counts as no share.
pub(super) fn share(ln: f32) -> i16 {
    let floored = if ln > LEAST { ln } else { LEAST };
    fixed(if floored < 0.0 { floored } else { 0.0 })
}

/// Convert steps to a value.
pub(super) fn real(steps: i16) -> f32 {
    f32::from(steps) * (1.0 / STEPS)
}

/// Move `value` towards `target` by `rate` / 32768. Both are 16 bits, so the product of difference and rate fits, and so does the
/// result.
fn towards(value: i16, target: i32, rate: i32) -> i16 {
    let value = i32::from(value);
    (value + (((target - value) * rate + (1 << 14)) >> 15)) as i16
}

impl Page {
    /// A page without observations.
    pub const UNSEEN: Page = {
        let mut values = [UNSEEN; VALUES];
        (values[BIAS], values[FRESH]) = (0, UNSAID);
        Page { values }
    };

    /// Return the digests' estimate for the query with the next attention; `rest` if they do not name the page.
    pub fn fresh(&self, rest: i16) -> i16 {
        match self.values[FRESH] {
            UNSAID => rest,
            fresh => fresh,
        }
    }

    /// Record the page's share at a step.
    pub fn saw(&mut self, share: i16, rates: &Rates) {
        let v = &mut self.values;
        let of = i32::from(share);
        v[FAST] = towards(v[FAST], of, rates.fast);
        v[SLOW] = towards(v[SLOW], of, rates.slow);
        v[PEAK] = share.max(v[PEAK].saturating_sub(rates.decay));
        v[LAST] = share;
    }

    /// Record the page's share at a step for which digests had estimated `fresh`. `read`: the share was observed, not estimated.
    pub fn saw_beside(&mut self, share: i16, read: bool, fresh: i16, rates: &Rates) {
        let bias = self.values[BIAS];
        let above = towards(bias, i32::from(share) - i32::from(fresh), BIAS_RATE);
        self.saw(share, rates);
        let v = &mut self.values;
        v[BIAS] = if read { above } else { bias };
        (v[QUERY], v[FRESH]) = (fresh, UNSAID);
    }

    /// Return the share of a page that was neither named nor estimated by a digest: its part of the rest. Without a rest it was not
    /// read, and its last share drifts to `mean`.
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

//! What is remembered of a page: logarithms of shares, in steps of 1/2048.

use super::Kind;

/// Shares below e^-15.9 count as this.
pub(super) const LEAST: f32 = -15.9;
const STEPS: f32 = 2048.0;
/// A page of which nothing was seen: about one in a thousand.
const UNSEEN: f32 = -7.0;

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
/// What the digests say of a query whose attention has not been seen yet. No feature.
pub(super) const FRESH: usize = 7;

const FAST_RATE: f32 = 0.3;
const SLOW_RATE: f32 = 0.05;
const BIAS_RATE: f32 = 0.3;
const PEAK_DECAY: f32 = 0.05;

/// 16 bytes a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Page {
    values: [i16; VALUES],
}

const _: () = assert!(size_of::<Page>() == 16);

pub(super) fn fixed(value: f32) -> i16 {
    // A cast saturates and turns NaN into 0; no logarithm of a share gets there.
    (value * STEPS + if value < 0.0 { -0.5 } else { 0.5 }) as i16
}

impl Default for Page {
    fn default() -> Self {
        let mut values = [fixed(UNSEEN); VALUES];
        values[BIAS] = 0;
        Page { values }
    }
}

impl Page {
    pub fn get(&self, value: usize) -> f32 {
        f32::from(self.values[value]) * (1.0 / STEPS)
    }

    pub fn set(&mut self, value: usize, to: i16) {
        self.values[value] = to;
    }

    pub fn values(&self) -> [f32; VALUES] {
        self.values.map(|v| f32::from(v) * (1.0 / STEPS))
    }

    /// The page's share at a step is `ln`. `read`: as attention saw it, and not as an estimate.
    pub fn saw(&mut self, ln: f32, read: bool, with_query: bool) {
        let mut v = self.values();
        v[FAST] += FAST_RATE * (ln - v[FAST]);
        v[SLOW] += SLOW_RATE * (ln - v[SLOW]);
        v[PEAK] = ln.max(v[PEAK] - PEAK_DECAY).max(LEAST);
        v[LAST] = ln;
        if with_query {
            if read {
                v[BIAS] += BIAS_RATE * (ln - v[FRESH] - v[BIAS]);
            }
            v[QUERY] = v[FRESH];
        }
        self.values = v.map(fixed);
    }
}

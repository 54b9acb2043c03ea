//! What is remembered of a page.

use super::Kind;

/// Shares below this count as this: what a page of a long context gets from a query that does not care about it.
pub(super) const SHARE_MIN: f32 = 1e-6;
/// Its logarithm.
pub(super) const LN_SHARE_MIN: f32 = -13.815_511;

/// A score entry, its indices already turned into positions.
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

/// 24 bytes a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Page {
    /// Share at the last step seen.
    pub last: f32,
    /// Moving average of shares over about three steps.
    pub fast: f32,
    /// Moving average of shares over about twenty steps.
    pub slow: f32,
    /// Largest share, decaying.
    pub peak: f32,
    /// Logarithm of the newest look-ahead query's estimate.
    pub ahead: f32,
    /// Logarithm of the newest query's estimate.
    pub query: f32,
}

const _: () = assert!(size_of::<Page>() == 24);

pub(super) const FAST: f32 = 0.3;
pub(super) const SLOW: f32 = 0.05;
pub(super) const PEAK_DECAY: f32 = 0.97;

impl Default for Page {
    fn default() -> Self {
        let s = SHARE_MIN;
        Page { last: s, fast: s, slow: s, peak: s, ahead: LN_SHARE_MIN, query: LN_SHARE_MIN }
    }
}

impl Page {
    pub fn saw(&mut self, share: f32) {
        self.last = share;
        self.fast += FAST * (share - self.fast);
        self.slow += SLOW * (share - self.slow);
        self.peak = share.max(self.peak * PEAK_DECAY);
    }
}

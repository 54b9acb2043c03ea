//! The fit of one plane: a log-linear model of the next step's shares.
//!
//! The predicted share of page i is softmax(w·x_i). Weights follow the gradient of the cross-entropy against the shares that were
//! then seen, each with its own rate (AdaGrad), so the scale of a feature does not matter.

use super::page::{LN_SHARE_MIN, Page, SHARE_MIN};

/// Features of a page: logarithms of last, fast, slow, peak; look-ahead and query estimates; successor's share; recency.
pub(super) const FEATURES: usize = 8;
pub(super) type Features = [f32; FEATURES];

const RATE: f32 = 0.1;

#[derive(Clone, Debug)]
pub(super) struct Fit {
    pub weights: Features,
    squares: Features,
}

impl Default for Fit {
    fn default() -> Self {
        // Before anything was learnt: last step's attention, a little of everything else.
        Fit { weights: [0.4, 0.2, 0.1, 0.0, 0.3, 0.0, 0.05, 0.05], squares: [1e-4; FEATURES] }
    }
}

/// What a plane may use at this step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    pub ahead: bool,
    pub query: bool,
}

pub(super) fn features(page: &Page, before: &Page, from_end: usize, known: Known) -> Features {
    let ln = |share: f32| share.max(SHARE_MIN).ln() - LN_SHARE_MIN;
    let estimate = |ln: f32, known: bool| if known { ln.max(LN_SHARE_MIN) - LN_SHARE_MIN } else { 0.0 };
    [
        ln(page.last),
        ln(page.fast),
        ln(page.slow),
        ln(page.peak),
        estimate(page.ahead, known.ahead),
        estimate(page.query, known.query),
        ln(before.last),
        1.0 / (1.0 + from_end as f32),
    ]
}

impl Fit {
    pub fn score(&self, x: &Features) -> f32 {
        self.weights.iter().zip(x).map(|(w, x)| w * x).sum()
    }

    /// `gradient` is Σ (predicted share − seen share) × x.
    pub fn step(&mut self, gradient: &Features) {
        for ((w, s), g) in self.weights.iter_mut().zip(&mut self.squares).zip(gradient) {
            if g.is_finite() {
                *s += g * g;
                *w = (*w - RATE * g / s.sqrt()).clamp(-4.0, 4.0);
            }
        }
    }
}

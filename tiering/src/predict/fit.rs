//! The fit of one plane: a log-linear model of the next step's shares.
//!
//! The predicted share of page i is softmax(w·x_i) over the plane's pages. Each step that is learnt from adds the gradient of the
//! cross-entropy against the shares that were then seen, and w takes a Newton step with the Hessian of the recent past: nothing
//! depends on the scale of a feature or on a learning rate, and features that say the same share their weight (online Newton).

use super::float::exp;
use super::page::{AHEAD, FAST, FRESH, LAST, Page, SLOW, VALUES};

/// The page's values; then the last share of the page before it in the sequence, recency, whether it is the first.
pub(super) const FEATURES: usize = VALUES + 3;
pub(super) type Features = [f32; FEATURES];

const BEFORE: usize = VALUES;
const RECENCY: usize = VALUES + 1;
const FIRST: usize = VALUES + 2;

/// Pages from the end that have a recency; it falls with the distance.
const RECENT: usize = 64;
/// What the past counts for after one more step: some hundred steps are remembered.
const MEMORY: f64 = 0.99;
/// Added to the Hessian's diagonal at first, and at each step: directions in which nothing was seen stay where they are.
const PRIOR: f64 = 1.0;
const RIDGE: f64 = 1e-3;
/// No weight moves by more than this in a step, or beyond this.
const MOVE_MAX: f64 = 0.5;
const WEIGHT_MAX: f32 = 16.0;

#[derive(Clone, Debug)]
pub(super) struct Fit {
    pub weights: Features,
    hessian: [[f64; FEATURES]; FEATURES],
    /// Steps learnt from.
    pub learnt: u32,
}

impl Fit {
    /// Before anything was learnt: history, and the look-ahead if there is one.
    pub fn new(with_ahead: bool) -> Fit {
        let mut weights = [0.0; FEATURES];
        (weights[LAST], weights[FAST], weights[SLOW]) = (0.3, 0.2, 0.1);
        if with_ahead {
            weights[AHEAD] = 0.4;
        }
        let mut hessian = [[0.0; FEATURES]; FEATURES];
        hessian.iter_mut().enumerate().for_each(|(i, row)| row[i] = PRIOR);
        Fit { weights, hessian, learnt: 0 }
    }

    pub fn score(&self, x: &Features) -> f32 {
        // Four sums side by side: the order is fixed here, not by the compiler.
        let mut sums = [0.0f32; 4];
        for i in 0..FEATURES {
            sums[i % 4] += self.weights[i] * x[i];
        }
        (sums[0] + sums[1]) + (sums[2] + sums[3])
    }

    /// Moves the weights by what a step's attention showed.
    pub fn step(&mut self, lesson: &Lesson) {
        let (predicted, seen) = (1.0 / lesson.predicted, 1.0 / lesson.seen);
        if !(predicted.is_finite() && seen.is_finite()) {
            return;
        }
        let mean = lesson.mean.map(|m| m * predicted);
        let mut gradient = [0.0; FEATURES];
        for (i, g) in gradient.iter_mut().enumerate() {
            *g = f64::from(mean[i] - lesson.target[i] * seen);
        }
        for i in 0..FEATURES {
            for j in 0..=i {
                let curve = f64::from(lesson.square[i][j] * predicted - mean[i] * mean[j]);
                self.hessian[i][j] = MEMORY * self.hessian[i][j] + curve;
            }
            self.hessian[i][i] += RIDGE;
        }
        let Some(change) = solve(&self.hessian, gradient) else { return };
        let largest = change.iter().fold(0.0f64, |most, c| most.max(c.abs()));
        if !largest.is_finite() {
            return;
        }
        let damp = if largest > MOVE_MAX { MOVE_MAX / largest } else { 1.0 };
        for (w, c) in self.weights.iter_mut().zip(change) {
            *w = (*w - (damp * c) as f32).clamp(-WEIGHT_MAX, WEIGHT_MAX);
        }
        self.learnt = self.learnt.saturating_add(1);
    }
}

/// The features of a page: `before` is the last share of the one before it, `from_end` its distance from the sequence's end.
pub(super) fn features(page: &Page, before: f32, at: usize, from_end: usize, ahead: bool) -> Features {
    let values = page.values();
    let mut x = [0.0; FEATURES];
    x[..VALUES].copy_from_slice(&values);
    x[FRESH] = 0.0;
    if !ahead {
        x[AHEAD] = 0.0;
    }
    x[BEFORE] = before;
    x[RECENCY] = if from_end < RECENT { 1.0 / (1 + from_end) as f32 } else { 0.0 };
    x[FIRST] = if at == 0 { 1.0 } else { 0.0 };
    x
}

/// Sums over a step's pages, features weighted with predicted and with seen shares.
#[derive(Clone, Debug, Default)]
pub(super) struct Lesson {
    predicted: f32,
    seen: f32,
    mean: Features,
    target: Features,
    /// Lower triangle.
    square: [[f32; FEATURES]; FEATURES],
}

impl Lesson {
    /// One page: its score, less the largest of the plane, and the share that it then had.
    pub fn page(&mut self, x: &Features, score: f32, share: f32) {
        let p = exp(score);
        self.predicted += p;
        self.seen += share;
        for i in 0..FEATURES {
            self.mean[i] += p * x[i];
            self.target[i] += share * x[i];
            let px = p * x[i];
            self.square[i].iter_mut().zip(x).take(i + 1).for_each(|(s, x)| *s += px * x);
        }
    }
}

/// Solves H·change = gradient, H given by its lower triangle (Cholesky). `None`: not positive definite.
fn solve(h: &[[f64; FEATURES]; FEATURES], mut b: [f64; FEATURES]) -> Option<[f64; FEATURES]> {
    let mut l = *h;
    for i in 0..FEATURES {
        for j in 0..=i {
            let sum = (0..j).fold(l[i][j], |sum, k| sum - l[i][k] * l[j][k]);
            if i != j {
                l[i][j] = sum / l[j][j];
            } else if sum > 0.0 {
                l[i][i] = sum.sqrt();
            } else {
                return None;
            }
        }
    }
    for i in 0..FEATURES {
        b[i] = (0..i).fold(b[i], |sum, k| sum - l[i][k] * b[k]) / l[i][i];
    }
    for i in (0..FEATURES).rev() {
        b[i] = (i + 1..FEATURES).fold(b[i], |sum, k| sum - l[k][i] * b[k]) / l[i][i];
    }
    Some(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_solved_solves() {
        let mut h = [[0.0; FEATURES]; FEATURES];
        for (i, row) in h.iter_mut().enumerate() {
            for (j, cell) in row.iter_mut().enumerate().take(i + 1) {
                *cell = if i == j { 3.0 + i as f64 } else { 1.0 / (1 + i + j) as f64 };
            }
        }
        let b: [f64; FEATURES] = core::array::from_fn(|i| i as f64 - 4.0);
        let x = solve(&h, b).expect("diagonally dominant");
        for i in 0..FEATURES {
            let row: f64 = (0..FEATURES).map(|j| if j <= i { h[i][j] } else { h[j][i] } * x[j]).sum();
            assert!((row - b[i]).abs() < 1e-9);
        }
        h[3][3] = -1.0;
        assert_eq!(solve(&h, b), None);
    }
}

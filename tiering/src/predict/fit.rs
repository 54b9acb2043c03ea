//! The fit of one plane: a log-linear model of the next step's shares.
//!
//! The predicted share of page i is softmax(w·x_i) over the plane's pages. Each step used for learning adds the gradient of the
//! cross-entropy against the observed shares. Then w takes a Newton step with the Hessian of the recent past (online Newton). The
//! result does not depend on the scale of a feature or on a learning rate, and redundant features share their weight.

use super::Pages;
use super::float::largest;
use super::page::{AHEAD, FAST, FRESH, LAST, Page, SLOW, VALUES, real};
use serde::{Deserialize, Serialize};

/// Features of a page: its values, but in place of [`FRESH`] the last share of the preceding page of the sequence; then recency,
/// and whether it is the first page. The rest is 0, so that loops process whole vectors.
pub(super) const FEATURES: usize = 10;
const PADDED: usize = 12;
type Features = [f32; PADDED];
pub(super) const BEFORE: usize = FRESH;
const RECENCY: usize = VALUES;
const FIRST: usize = VALUES + 1;

/// Number of pages from the end that have a recency; it decreases with the distance.
const RECENT: usize = 64;
/// Weight of the past after one more lesson: about a hundred lessons are remembered.
const MEMORY: f64 = 0.99;
/// Added to the Hessian's diagonal initially (`PRIOR`) and with each lesson (`RIDGE`): directions without observations keep their
/// weights.
const PRIOR: f64 = 1.0;
const RIDGE: f64 = 1e-3;
/// Maximum change of a weight per lesson.
const MOVE_MAX: f64 = 0.5;
/// Maximum weight of a value. In fixed point, the sum of eight products of it with 16 bits fits into 32.
const WEIGHT_MAX: f32 = 3.9;
const WEIGHT_STEPS: f32 = 2048.0;
/// Maximum weight of recency and of being first, which are at most 1.
const PLACE_MAX: f32 = 16.0;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Fit {
    weights: [f32; FEATURES],
    /// Weights of values, in 1/2048.
    fixed: [i16; VALUES],
    hessian: [[f64; FEATURES]; FEATURES],
}

/// Recency by distance from the end: 1 / (number of pages from the end, including the page).
const RECENCIES: [f32; RECENT] = {
    let mut all = [0.0; RECENT];
    let mut from_end = 0;
    while from_end < RECENT {
        all[from_end] = 1.0 / (1 + from_end) as f32;
        from_end += 1;
    }
    all
};

fn recency(from_end: usize) -> f32 {
    RECENCIES.get(from_end).copied().unwrap_or(0.0)
}

impl Fit {
    /// Create a fit before any lesson: it uses history, and the look-ahead if there is one.
    pub fn new(with_ahead: bool) -> Fit {
        let mut weights = [0.0; FEATURES];
        (weights[LAST], weights[FAST], weights[SLOW]) = (0.3, 0.2, 0.1);
        if with_ahead {
            weights[AHEAD] = 0.4;
        }
        let mut hessian = [[0.0; FEATURES]; FEATURES];
        hessian.iter_mut().enumerate().for_each(|(i, row)| row[i] = PRIOR);
        let mut fit = Fit { weights, fixed: [0; VALUES], hessian };
        fit.fix();
        fit
    }

    fn fix(&mut self) {
        for (fixed, weight) in self.fixed.iter_mut().zip(self.weights) {
            *fixed = (weight * WEIGHT_STEPS) as i16;
        }
    }

    /// Compute w·x of each evaluated page, and return the largest. A block out of range counts as a page without observations.
    pub fn scores(&self, of: &[Page], pages: &Pages<'_>, scores: &mut [f32]) -> f32 {
        const SCALE: f32 = 1.0 / (WEIGHT_STEPS * 2048.0);
        let page =
            |at: u32| pages.blocks.get(at as usize).and_then(|&block| of.get(block as usize)).unwrap_or(&Page::UNSEEN);
        let (mut fixed, of_before) = (self.fixed, i32::from(self.fixed[BEFORE]));
        fixed[BEFORE] = 0;
        let (often, turn) = scores.split_at_mut(pages.often.len());
        let mut most = f32::NEG_INFINITY;
        for (positions, scores) in [(pages.often, often), (pages.turn, turn)] {
            let scores = &mut scores[..positions.len()];
            for (&at, score) in positions.iter().zip(&mut *scores) {
                let values = &page(at).values;
                let before = page(at.saturating_sub(1)).values[LAST];
                // The value at `BEFORE` is not a feature and has weight 0 there.
                let sum: i32 = values.iter().zip(&fixed).map(|(v, w)| i32::from(*v) * i32::from(*w)).sum();
                *score = (sum + i32::from(before) * of_before) as f32 * SCALE;
            }
            for (&at, score) in positions.iter().zip(&mut *scores).rev() {
                let from_end = (pages.blocks.len() - 1).saturating_sub(at as usize);
                let Some(recency) = RECENCIES.get(from_end) else { break };
                *score += self.weights[RECENCY] * recency;
            }
            if let (Some(0), Some(score)) = (positions.first(), scores.first_mut()) {
                *score += self.weights[FIRST];
            }
            most = most.max(largest(scores));
        }
        most
    }

    /// Move the weights by the result of a lesson.
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
        for (i, (w, c)) in self.weights.iter_mut().zip(change).enumerate() {
            let most = if i < VALUES { WEIGHT_MAX } else { PLACE_MAX };
            *w = (*w - (damp * c) as f32).clamp(-most, most);
        }
        self.fix();
    }
}

/// Sums over a step's pages: features weighted by predicted and by observed shares.
#[derive(Clone, Debug, Default)]
pub(super) struct Lesson {
    /// True if look-aheads are a feature.
    ahead: bool,
    predicted: f32,
    seen: f32,
    mean: Features,
    target: Features,
    square: [Features; FEATURES],
}

impl Lesson {
    pub fn new(ahead: bool) -> Lesson {
        Lesson { ahead, ..Lesson::default() }
    }

    /// Add one page, which may represent others like it: its predicted and its observed share, up to constants. `before`: the last
    /// share of the preceding page. `place`: its position, and the number of pages.
    pub fn page(&mut self, page: &Page, before: i16, place: (usize, usize), predicted: f32, seen: f32) {
        let mut x = [0.0; PADDED];
        for (x, value) in x.iter_mut().zip(page.values) {
            *x = real(value);
        }
        x[BEFORE] = real(before);
        x[RECENCY] = recency(place.1 - 1 - place.0);
        x[FIRST] = if place.0 == 0 { 1.0 } else { 0.0 };
        if !self.ahead {
            x[AHEAD] = 0.0;
        }
        self.predicted += predicted;
        self.seen += seen;
        let px = x.map(|x| predicted * x);
        for i in 0..PADDED {
            self.mean[i] += px[i];
            self.target[i] += seen * x[i];
        }
        for (row, p) in self.square.iter_mut().zip(px) {
            row.iter_mut().zip(x).for_each(|(sum, x)| *sum += p * x);
        }
    }
}

/// Solve H·change = gradient, with H given by its lower triangle (Cholesky). `None`: not positive definite.
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

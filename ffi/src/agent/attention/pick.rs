//! Which pages an `approx` step reads: those that digests and history rank highest, and those that always belong to it.
//!
//! A page's share of attention is predicted log-linearly from the share that its digest gives the step's query, from the running
//! mean of its shares and from the last of them; the weights are fitted to what was read while it runs, a set a plane.

/// Pages at a sequence's beginning that every step reads: attention sinks (StreamingLLM, arXiv 2309.17453).
pub const SINKS: u32 = 1;
/// Sealed pages at its end that every step reads.
pub const RECENT: u32 = 2;

/// The least share that is told from nothing.
const LEAST: f32 = 1e-7;
/// What is predicted from: the three above, and a constant.
const INPUTS: usize = 4;
/// Weights before anything was read; the means of what fits on decoders like to be near these.
const PRIOR: [f32; INPUTS] = [0.4, 0.4, 0.2, 0.0];
/// How much the prior counts, in pages read.
const PRIOR_WEIGHT: f64 = 4.0;
/// What a step's pages count for at the next.
const KEPT: f64 = 0.98;

/// A page that a step could read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Page index within the sequence.
    pub index: u32,
    /// Share that the digest gives the query; `None`: no digest, or no query.
    pub digest: Option<f32>,
    /// Running mean of its shares and the last one; 0: never seen.
    pub history: (f32, f32),
    /// It is read whatever is predicted: unsealed, a sink, or recent.
    pub hard: bool,
    /// It is read.
    pub picked: bool,
    /// Predicted share, but for a factor that all have in common.
    pub predicted: f32,
}

impl Candidate {
    /// What is predicted from. Of what is not known, what is known takes the place.
    fn inputs(&self, pages: usize) -> [f32; INPUTS] {
        let known = |share: f32| (share > 0.0).then(|| share.max(LEAST).ln());
        let digest = self.digest.and_then(|share| known(share.max(LEAST)));
        let (mean, last) = (known(self.history.0), known(self.history.1));
        // A page of which nothing is known is as good as any: it is read once and then known.
        let other = mean.or(digest).unwrap_or(-(pages.max(1) as f32).ln());
        [digest.unwrap_or(other), mean.unwrap_or(other), last.unwrap_or(other), 1.0]
    }
}

/// A running weighted least-squares fit.
#[derive(Clone, Copy)]
struct Fit {
    products: [[f64; INPUTS]; INPUTS],
    sums: [f64; INPUTS],
    weights: [f32; INPUTS],
}

impl Fit {
    const NEW: Fit = Fit { products: [[0.0; INPUTS]; INPUTS], sums: [0.0; INPUTS], weights: PRIOR };

    fn predict(&self, inputs: &[f32; INPUTS]) -> f32 {
        inputs.iter().zip(&self.weights).map(|(x, w)| x * w).sum()
    }

    fn fade(&mut self) {
        self.products.iter_mut().flatten().for_each(|p| *p *= KEPT);
        self.sums.iter_mut().for_each(|s| *s *= KEPT);
    }

    fn observe(&mut self, inputs: &[f32; INPUTS], target: f32, weight: f64) {
        for (row, x) in inputs.iter().enumerate() {
            let x = f64::from(*x) * weight;
            self.sums[row] += x * f64::from(target);
            self.products[row].iter_mut().zip(inputs).for_each(|(p, y)| *p += x * f64::from(*y));
        }
    }

    /// Solves for the weights, drawn to the prior; keeps those that there are if that has no solution.
    fn solve(&mut self) {
        let mut rows = [[0.0; INPUTS + 1]; INPUTS];
        for (i, row) in rows.iter_mut().enumerate() {
            row[..INPUTS].copy_from_slice(&self.products[i]);
            row[i] += PRIOR_WEIGHT;
            row[INPUTS] = self.sums[i] + PRIOR_WEIGHT * f64::from(PRIOR[i]);
        }
        // Positive definite: no pivoting is needed.
        for i in 0..INPUTS {
            let solvable = rows[i][i] > f64::MIN_POSITIVE; // no if NaN
            if !solvable {
                return;
            }
            let pivot = rows[i];
            for row in rows.iter_mut().skip(i + 1) {
                let factor = row[i] / pivot[i];
                row.iter_mut().zip(pivot).for_each(|(x, p)| *x -= factor * p);
            }
        }
        let mut weights = [0.0; INPUTS];
        for i in (0..INPUTS).rev() {
            let known: f64 = (i + 1..INPUTS).map(|j| rows[i][j] * weights[j]).sum();
            weights[i] = (rows[i][INPUTS] - known) / rows[i][i];
        }
        if weights.iter().all(|w| w.is_finite()) {
            self.weights = weights.map(|w| w as f32);
        }
    }
}

/// What a lane knows of predicting, by plane.
pub struct Picker {
    fits: Box<[Fit]>,
    order: Vec<u32>,
}

impl Picker {
    /// Nothing was read yet.
    #[must_use]
    pub fn new(planes: u32) -> Picker {
        Picker { fits: vec![Fit::NEW; planes as usize].into_boxed_slice(), order: Vec::new() }
    }

    /// Predicts each page's share and picks `permille` thousandths of the pages, rounded up, and all hard ones.
    pub fn pick(&mut self, plane: u16, permille: u16, pages: &mut [Candidate]) {
        let Some(fit) = self.fits.get(usize::from(plane)) else { return };
        let count = pages.len();
        let mut left = (count * usize::from(permille)).div_ceil(1000);
        self.order.clear();
        for (at, page) in pages.iter_mut().enumerate() {
            page.predicted = fit.predict(&page.inputs(count)).min(0.0).exp();
            page.picked = page.hard;
            if page.hard {
                left = left.saturating_sub(1);
            } else {
                self.order.push(at as u32);
            }
        }
        let better = |a: &u32, b: &u32| {
            let (a, b) = (&pages[*a as usize], &pages[*b as usize]);
            b.predicted.total_cmp(&a.predicted).then(b.index.cmp(&a.index))
        };
        if left < self.order.len() {
            if left > 0 {
                self.order.select_nth_unstable_by(left - 1, better);
            }
            self.order.truncate(left);
        }
        for at in &self.order {
            pages[*at as usize].picked = true;
        }
    }

    /// Learns from a step: `shares` are those of the pages that were read, by position in `pages`, NaN for the others.
    pub fn learn(&mut self, plane: u16, pages: &[Candidate], shares: impl Iterator<Item = f32>) {
        let Some(fit) = self.fits.get_mut(usize::from(plane)) else { return };
        fit.fade();
        for (page, share) in pages.iter().zip(shares).filter(|(page, share)| share.is_finite() && !page.hard) {
            // Pages that matter little are many, and what they teach matters little.
            let weight = f64::from(share.max(0.0)).sqrt();
            fit.observe(&page.inputs(pages.len()), share.max(LEAST).ln(), weight);
        }
        fit.solve();
    }
}

/// The share of attention that the pages without a share (NaN) of their own are estimated to hold, and by what their predictions
/// are to be multiplied. `shares` are those of the pages read, of all that was read. What was picked by its prediction says what
/// predictions are worth; sinks and recent pages, which are unlike the others, only if nothing else was read.
#[must_use]
pub fn estimate(pages: &[Candidate], shares: impl Iterator<Item = f32>) -> (f32, f32) {
    let (mut picked, mut hard, mut omitted) = ((0.0, 0.0), (0.0, 0.0), 0.0);
    for (page, share) in pages.iter().zip(shares) {
        let sum = match (share.is_finite(), page.hard) {
            (true, false) => &mut picked,
            (true, true) if page.digest.is_some() => &mut hard,
            (true, true) => continue, // not sealed: nothing was predicted of it
            (false, _) => {
                omitted += page.predicted;
                continue;
            }
        };
        *sum = (sum.0 + share, sum.1 + page.predicted);
    }
    let (read, predicted) = if picked.1 > 0.0 { picked } else { hard };
    let factor = if predicted > 0.0 { read / predicted } else { 1.0 };
    let ratio = factor * omitted;
    (ratio / (1.0 + ratio), factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(index: u32, digest: f32, history: f32) -> Candidate {
        Candidate { index, digest: Some(digest), history: (history, history), ..Candidate::default() }
    }

    fn picked(pages: &[Candidate]) -> Vec<u32> {
        pages.iter().filter(|page| page.picked).map(|page| page.index).collect()
    }

    #[test]
    fn the_best_pages_and_those_that_always_belong_are_picked() {
        let mut pages: Vec<Candidate> = (0..20).map(|i| candidate(i, 0.01, 0.01)).collect();
        (pages[0].hard, pages[19].hard) = (true, true);
        pages[7] = candidate(7, 0.3, 0.2);
        pages[11] = candidate(11, 0.2, 0.3);
        let mut picker = Picker::new(1);
        picker.pick(0, 200, &mut pages);
        assert_eq!(picked(&pages), [0, 7, 11, 19]);
        picker.pick(0, 1, &mut pages);
        assert_eq!(picked(&pages), [0, 19], "what must be read is read whatever the budget");
        picker.pick(0, 1000, &mut pages);
        assert_eq!(picked(&pages).len(), 20);
    }

    #[test]
    fn a_page_of_which_nothing_is_known_is_tried() {
        let mut pages: Vec<Candidate> = (0..10).map(|i| candidate(i, 0.001, 0.001)).collect();
        pages[4] = Candidate { index: 4, ..Candidate::default() };
        Picker::new(1).pick(0, 100, &mut pages);
        assert_eq!(picked(&pages), [4]);
    }

    #[test]
    fn weights_follow_what_tells_the_truth() {
        // Shares are what digests say; history says the reverse.
        let mut picker = Picker::new(2);
        let share = |i: u32| (i + 1) as f32 / 210.0;
        for _ in 0..50 {
            let pages: Vec<Candidate> = (0..20).map(|i| candidate(i, share(i), share(19 - i))).collect();
            picker.learn(1, &pages, (0..20).map(share));
        }
        let mut pages: Vec<Candidate> = (0..20).map(|i| candidate(i, share(i), share(19 - i))).collect();
        picker.pick(1, 250, &mut pages);
        assert_eq!(picked(&pages), [15, 16, 17, 18, 19]);
        picker.pick(0, 250, &mut pages);
        assert_ne!(picked(&pages), [15, 16, 17, 18, 19], "another plane has learnt nothing of it");
    }

    #[test]
    fn the_estimate_is_the_predicted_share_of_what_was_not_read() {
        let mut pages: Vec<Candidate> = (0..4).map(|i| candidate(i, 0.1, 0.1)).collect();
        for (page, predicted) in pages.iter_mut().zip([0.2, 0.1, 0.05, 0.05]) {
            page.predicted = predicted;
        }
        pages[0].hard = true;
        // Of what was read, 0.4 are the hard page's and 0.6 the other's, so what is predicted is a sixth of the truth.
        let shares = [0.4, 0.6, f32::NAN, f32::NAN];
        let (omitted, factor) = estimate(&pages, shares.into_iter());
        assert!((factor - 6.0).abs() < 1e-5 && (omitted - 0.6 / 1.6).abs() < 1e-6);
        assert_eq!(estimate(&pages[..2], shares.into_iter()).0, 0.0);
        // With nothing but a hard page read, that is what there is to go by: half of what is predicted of it.
        let (omitted, factor) = estimate(&pages, [0.1, f32::NAN, f32::NAN, f32::NAN].into_iter());
        assert!((factor - 0.5).abs() < 1e-6 && (omitted - 0.1 / 1.1).abs() < 1e-6);
    }
}

//! Which pages an `approx` step reads: those that digests and history rank highest, and those that always belong to it.
//!
//! A page's share of attention is predicted log-linearly from the share that its digest gives the step's query, from the running
//! mean of its shares and from the last of them; the weights are fitted to what was read while it runs, a set a plane.
//!
//! That is a mean over query heads, and a head that looks elsewhere than the others would lose all of its attention. Where digests
//! tell heads apart, what is picked makes the sum over heads of the squares of what they lose small: a page counts for a head as
//! much as that head would lose without it.

use super::Heads;

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
/// Parts of the budget before each of which heads are weighed by what they lose with what was picked so far; more change nothing
/// that can be measured.
const PARTS: usize = 4;

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
    /// It is in tier 0.
    pub there: bool,
    /// It is among the best within the budget.
    pub picked: bool,
    /// It is not, and read in the place of one that is and is not in tier 0.
    pub instead: bool,
    /// Predicted share, but for a factor that all have in common.
    pub predicted: f32,
}

impl Candidate {
    /// Whether the step is to read it.
    #[must_use]
    pub fn wanted(&self) -> bool {
        self.picked || self.instead
    }

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
    /// What each page is worth.
    worth: Vec<f32>,
}

impl Picker {
    /// Nothing was read yet.
    #[must_use]
    pub fn new(planes: u32) -> Picker {
        let fits = vec![Fit::NEW; planes as usize].into_boxed_slice();
        Picker { fits, order: Vec::new(), worth: Vec::new() }
    }

    /// Predicts each page's share and picks `permille` thousandths of the pages, rounded up, and all hard ones. `heads`: what
    /// digests give each head of the step's query of these pages, if that is known.
    pub fn pick(&mut self, plane: u16, permille: u16, pages: &mut [Candidate], heads: &Heads) {
        let Some(fit) = self.fits.get(usize::from(plane)) else { return };
        let count = pages.len();
        let hard = pages.iter().filter(|page| page.hard).count();
        let budget = (count * usize::from(permille)).div_ceil(1000).saturating_sub(hard);
        self.worth.clear();
        for page in pages.iter_mut() {
            page.predicted = fit.predict(&page.inputs(count)).min(0.0).exp();
            (page.picked, page.instead) = (page.hard, false);
            self.worth.push(page.predicted);
        }
        let parts = if heads.count() > 1 && budget + hard < count { PARTS } else { 1 };
        let mut left = budget;
        for part in (1..=parts).rev().filter(|_| budget > 0) {
            if parts > 1 {
                self.weigh(pages, heads);
            }
            let now = left.div_ceil(part);
            self.best(now, pages, |page| !page.picked, |page| page.picked = true);
            left -= now;
        }
    }

    /// As many pages that are in tier 0 as were picked and are not are read in their place, the best of them. What was picked is
    /// asked for by its scores all the same.
    pub fn stand_in(&mut self, pages: &mut [Candidate]) {
        let absent = pages.iter().filter(|page| page.picked && !page.hard && !page.there).count();
        self.best(absent, pages, |page| !page.picked && page.there, |page| page.instead = true);
    }

    /// What pages are worth: the sum over heads of what each would get from them, times what it loses with what is picked. A head's
    /// part of a predicted share is as its digests say.
    fn weigh(&mut self, pages: &[Candidate], heads: &Heads) {
        self.worth.clear();
        self.worth.resize(pages.len(), 0.0);
        // Predicted over what the digests say, for all heads alike.
        let corrected = |page: &Candidate, share: f32| match page.digest {
            Some(digest) => share * (page.predicted / digest.max(LEAST)),
            None => page.predicted,
        };
        for (shares, _) in heads.of(pages.len()) {
            let each = || pages.iter().zip(shares).map(|(page, share)| (page, corrected(page, *share)));
            let sum: f32 = each().map(|(_, share)| share).sum();
            let lost: f32 = each().filter(|(page, _)| !page.picked).map(|(_, share)| share).sum();
            let weight = lost / (sum * sum);
            if weight.is_finite() {
                self.worth.iter_mut().zip(each()).for_each(|(worth, (_, share))| *worth += weight * share);
            }
        }
    }

    /// Marks the `count` pages that are worth most of those that `may`; of equals the last.
    fn best(
        &mut self,
        count: usize,
        pages: &mut [Candidate],
        may: impl Fn(&Candidate) -> bool,
        mark: impl Fn(&mut Candidate),
    ) {
        let (order, worth) = (&mut self.order, &self.worth);
        order.clear();
        order.extend(pages.iter().enumerate().filter(|(_, page)| may(page)).map(|(at, _)| at as u32));
        if count < order.len() {
            let better = |a: &u32, b: &u32| worth[*b as usize].total_cmp(&worth[*a as usize]).then(b.cmp(a));
            if count > 0 {
                order.select_nth_unstable_by(count - 1, better);
            }
            order.truncate(count);
        }
        order.iter().for_each(|at| mark(&mut pages[*at as usize]));
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
        picker.pick(0, 200, &mut pages, &Heads::default());
        assert_eq!(picked(&pages), [0, 7, 11, 19]);
        picker.pick(0, 1, &mut pages, &Heads::default());
        assert_eq!(picked(&pages), [0, 19], "what must be read is read whatever the budget");
        picker.pick(0, 1000, &mut pages, &Heads::default());
        assert_eq!(picked(&pages).len(), 20);
    }

    #[test]
    fn a_page_of_which_nothing_is_known_is_tried() {
        let mut pages: Vec<Candidate> = (0..10).map(|i| candidate(i, 0.001, 0.001)).collect();
        pages[4] = Candidate { index: 4, ..Candidate::default() };
        Picker::new(1).pick(0, 100, &mut pages, &Heads::default());
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
        picker.pick(1, 250, &mut pages, &Heads::default());
        assert_eq!(picked(&pages), [15, 16, 17, 18, 19]);
        picker.pick(0, 250, &mut pages, &Heads::default());
        assert_ne!(picked(&pages), [15, 16, 17, 18, 19], "another plane has learnt nothing of it");
    }

    #[test]
    fn no_head_starves_beside_heads_that_agree() {
        // Five heads look at the first pages, one at pages 20 to 22 alone.
        let many: Vec<f32> = (0..24).map(|i| if i < 12 { 0.08 } else { 0.04 / 12.0 }).collect();
        let one: Vec<f32> = (0..24).map(|i| if (20..23).contains(&i) { 0.3 } else { 0.1 / 21.0 }).collect();
        let heads = Heads::of_shares(&[&many, &many, &many, &many, &many, &one]);
        let mut mean = Vec::new();
        heads.mean(24, &mut mean);
        let mut pages: Vec<Candidate> = mean.iter().enumerate().map(|(i, m)| candidate(i as u32, *m, 0.0)).collect();
        let mut picker = Picker::new(1);
        picker.pick(0, 250, &mut pages, &Heads::default());
        assert!(picked(&pages).iter().all(|index| *index < 12), "by the mean: {:?}", picked(&pages));
        picker.pick(0, 250, &mut pages, &heads);
        let lonely = picked(&pages).iter().filter(|index| **index >= 20).count();
        assert!(lonely > 0 && lonely < 6 && picked(&pages).len() == 6, "{:?}", picked(&pages));
    }

    #[test]
    fn a_share_of_next_to_nothing_silences_no_head() {
        let many: Vec<f32> = (0..24).map(|i| if i < 12 { 0.08 } else { 0.04 / 12.0 }).collect();
        let one: Vec<f32> = (0..24).map(|i| if (20..23).contains(&i) { 0.3 } else { 0.1 / 21.0 }).collect();
        let picks = |tiny: Option<f32>| {
            let (mut many, mut one) = (many.clone(), one.clone());
            (many[15], one[15]) = tiny.map_or((many[15], one[15]), |tiny| (tiny, tiny));
            let heads = Heads::of_shares(&[&many, &many, &many, &many, &many, &one]);
            let mut mean = Vec::new();
            heads.mean(24, &mut mean);
            let mut pages: Vec<Candidate> = mean.iter().zip(0..).map(|(m, i)| candidate(i, *m, 0.01)).collect();
            Picker::new(1).pick(0, 250, &mut pages, &heads);
            picked(&pages)
        };
        assert_eq!(picks(Some(1e-42)), picks(None));
    }

    #[test]
    fn what_is_there_stands_in_for_what_is_not() {
        let mut pages: Vec<Candidate> = (0..8).map(|i| candidate(i, 0.1 / (i + 1) as f32, 0.1)).collect();
        pages[7].hard = true;
        [2, 4, 5].into_iter().for_each(|at: usize| pages[at].there = true);
        let mut picker = Picker::new(1);
        picker.pick(0, 500, &mut pages, &Heads::default());
        assert_eq!(picked(&pages), [0, 1, 2, 7]);
        picker.stand_in(&mut pages);
        let read = |pages: &[Candidate]| -> Vec<u32> { pages.iter().filter(|p| p.instead).map(|p| p.index).collect() };
        assert_eq!((picked(&pages), read(&pages)), (vec![0, 1, 2, 7], vec![4, 5]), "the hard page is waited for");
        pages[0].there = true;
        picker.pick(0, 500, &mut pages, &Heads::default());
        picker.stand_in(&mut pages);
        assert_eq!((read(&pages), pages[4].wanted(), pages[5].wanted()), (vec![4], true, false));
    }
}

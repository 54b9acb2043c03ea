//! Picks the pages that an `approx` step reads: the ones that digests and history rank highest, and the ones that are always
//! read.
//!
//! A page's share of attention is predicted log-linearly from three inputs: the share that its digest gives for the step's
//! query, the running mean of its shares, and its last share. The weights are fitted online to the pages that were read, one
//! set for each plane.
//!
//! This prediction is a mean over query heads. A head that looks at other pages than the rest could lose all of its attention.
//! Where digests exist for each head, the pick therefore minimises the sum over heads of the squares of their losses: a page
//! counts for a head in proportion to that head's loss without it.
//!
//! Attention is narrow in some planes and wide in others. The budget of a sequence therefore moves between planes until the last page
//! that it pays for is worth the same in each; its mean over the pages of all planes stays the same.

use super::Heads;

/// Pages at the start of a sequence that every step reads: attention sinks (StreamingLLM, arXiv 2309.17453).
pub const SINKS: u32 = 1;
/// Sealed pages at the end of a sequence that every step reads.
pub const RECENT: u32 = 2;

/// The smallest share that is distinguished from zero.
const LEAST: f32 = 1e-7;
/// Number of inputs of the prediction: the three above, and a constant.
const INPUTS: usize = 4;
/// Weights before anything was read. The means of fits on similar decoders are close to these.
const PRIOR: [f32; INPUTS] = [0.4, 0.4, 0.2, 0.0];
/// Weight of the prior, in pages read.
const PRIOR_WEIGHT: f64 = 4.0;
/// Factor by which older observations are weighted down at each step.
const KEPT: f64 = 0.98;
/// Number of parts in which the budget is spent. Before each part, heads are weighted by their loss with the pages picked
/// so far. More parts make no measurable difference.
const PARTS: usize = 4;

/// Part of the difference between a plane's worth of a page and the mean that its budget follows at each step.
const BUDGET_RATE: f32 = 0.05;
/// Limits of a plane's budget, as a factor of the sequence's.
const BUDGET_FACTORS: (f32, f32) = (0.125, 2.0);

/// A page that a step could read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Page index within the sequence.
    pub index: u32,
    /// Share that the digest gives for the query; `None`: no digest, or no query.
    pub digest: Option<f32>,
    /// Running mean of its shares, and the last share; 0: never seen.
    pub history: (f32, f32),
    /// The page is always read: it is unsealed, a sink, or recent.
    pub always_kept: bool,
    /// The page is in tier 0.
    pub there: bool,
    /// The page is among the best within the budget.
    pub picked: bool,
    /// The page is not picked, and is read in place of a picked page that is not in tier 0.
    pub instead: bool,
    /// Predicted share, up to a factor that is common to all pages.
    pub predicted: f32,
}

impl Candidate {
    /// Report whether the step should read the page.
    #[must_use]
    pub fn wanted(&self) -> bool {
        self.picked || self.instead
    }

    /// Return the inputs of the prediction. Unknown inputs are replaced by known ones.
    fn inputs(&self, pages: usize) -> [f32; INPUTS] {
        let known = |share: f32| (share > 0.0).then(|| share.max(LEAST).ln());
        let digest = self.digest.and_then(|share| known(share.max(LEAST)));
        let (mean, last) = (known(self.history.0), known(self.history.1));
        // A page of which nothing is known gets the average share: it is read once and then has a history.
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

    /// Solve for the weights, regularised towards the prior. Keep the old weights if there is no solution.
    fn solve(&mut self) {
        let mut rows = [[0.0; INPUTS + 1]; INPUTS];
        for (i, row) in rows.iter_mut().enumerate() {
            row[..INPUTS].copy_from_slice(&self.products[i]);
            row[i] += PRIOR_WEIGHT;
            row[INPUTS] = self.sums[i] + PRIOR_WEIGHT * f64::from(PRIOR[i]);
        }
        // The matrix is positive definite, so no pivoting is needed.
        for i in 0..INPUTS {
            let solvable = rows[i][i] > f64::MIN_POSITIVE; // false for NaN
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

/// A plane's part of the budget.
#[derive(Clone, Copy)]
struct Budget {
    /// Its weight. The factor is this, divided by the mean weight.
    weight: f32,
    /// The sequence's budget at the last pick, in pages; 0: there was none.
    pages: f32,
    /// Logarithm of the share of the last page that was paid for.
    worth: f32,
}

/// The planes' parts of the budget, and sums over the planes that were picked for.
struct Budgets {
    planes: Box<[Budget]>,
    pages: f32,
    weighted_pages: f32,
    worths: f32,
    seen: f32,
}

impl Budgets {
    fn new(planes: u32) -> Budgets {
        let even = Budget { weight: 1.0, pages: 0.0, worth: 0.0 };
        Budgets {
            planes: vec![even; planes as usize].into_boxed_slice(),
            pages: 0.0,
            weighted_pages: 0.0,
            worths: 0.0,
            seen: 0.0,
        }
    }

    /// Return the factor of a plane's budget of `permille`. Its mean over the pages of all planes is 1.
    fn factor(&self, plane: usize, permille: u16) -> f32 {
        let (least, most) = BUDGET_FACTORS;
        let mean = if self.pages > 0.0 { self.weighted_pages / self.pages } else { 1.0 };
        // A plane cannot use more than all of its pages, so with a larger budget less of it moves.
        let movable = (1000.0 / f32::from(permille.max(1)) - 1.0).clamp(0.0, most - 1.0);
        1.0 + ((self.planes[plane].weight / mean).clamp(least, most) - 1.0) * movable / (most - 1.0)
    }

    /// Record the share of the last page that a plane's part of a budget of `pages` paid for.
    fn observe(&mut self, plane: usize, pages: f32, share: f32) {
        let worth = share.max(LEAST).ln();
        let Budget { weight, pages: before, worth: last } = self.planes[plane];
        if before == 0.0 {
            self.seen += 1.0;
            self.worths += worth;
        } else {
            self.worths += worth - last;
        }
        let pull = (BUDGET_RATE * (worth - self.worths / self.seen)).exp();
        let (least, most) = BUDGET_FACTORS;
        let moved = (weight * pull).clamp(least, most);
        self.pages += pages - before;
        self.weighted_pages += moved * pages - weight * before;
        self.planes[plane] = Budget { weight: moved, pages, worth };
    }
}

/// A lane's predictor: one fit and a part of the budget for each plane.
pub struct Picker {
    fits: Box<[Fit]>,
    budgets: Budgets,
    /// Budget that the last planes could not spend, in pages.
    unspent: usize,
    order: Vec<u32>,
    /// Value of each page for the current pick.
    worth: Vec<f32>,
}

impl Picker {
    /// Create a predictor that has seen no pages.
    #[must_use]
    pub fn new(planes: u32) -> Picker {
        let fits = vec![Fit::NEW; planes as usize].into_boxed_slice();
        Picker { fits, budgets: Budgets::new(planes), unspent: 0, order: Vec::new(), worth: Vec::new() }
    }

    /// Predict each page's share. Pick `permille` thousandths of the pages times the plane's part of the budget, rounded up, and all
    /// pages that are always kept. `heads` holds the digests' shares of these pages for each head of the step's query, if known.
    pub fn pick(&mut self, plane: u16, permille: u16, pages: &mut [Candidate], heads: &Heads) {
        let Some(fit) = self.fits.get(usize::from(plane)) else { return };
        let count = pages.len();
        let always_kept = pages.iter().filter(|page| page.always_kept).count();
        let factor = self.budgets.factor(usize::from(plane), permille);
        // Pages that are always kept do not move to other planes.
        let even = (count * usize::from(permille)).div_ceil(1000).saturating_sub(always_kept) as f32;
        let budget = ((even * factor).round() as usize).min(count - always_kept);
        self.worth.clear();
        for page in pages.iter_mut() {
            page.predicted = fit.predict(&page.inputs(count)).min(0.0).exp();
            (page.picked, page.instead) = (page.always_kept, false);
            self.worth.push(page.predicted);
        }
        if even > 0.0 {
            let last = always_kept + budget.max(1) - 1;
            let (_, share, _) = self.worth.select_nth_unstable_by(last, |a, b| b.total_cmp(a));
            self.budgets.observe(usize::from(plane), even, *share);
            self.worth.clear();
            self.worth.extend(pages.iter().map(|page| page.predicted));
        }
        let parts = if heads.count() > 1 && budget + always_kept < count { PARTS } else { 1 };
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

    /// Replace picked pages that are not in tier 0: mark as many unpicked pages that are in tier 0, the best of them. The
    /// picked pages are still requested by their scores. What cannot be spent here is spent in the next planes.
    pub fn stand_in(&mut self, pages: &mut [Candidate]) {
        let absent = pages.iter().filter(|page| page.picked && !page.always_kept && !page.there).count();
        let budget = absent + self.unspent;
        self.best(budget, pages, |page| !page.picked && page.there, |page| page.instead = true);
        self.unspent = (budget - self.order.len()).min(self.budgets.pages as usize);
    }

    /// Compute the value of each page: the sum over heads of the head's share on the page, times the head's loss with the
    /// current pick. The digests determine how a predicted share is divided among heads.
    fn weigh(&mut self, pages: &[Candidate], heads: &Heads) {
        self.worth.clear();
        self.worth.resize(pages.len(), 0.0);
        // Scale by prediction over digest, the same for all heads.
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

    /// Mark the `count` most valuable pages among those that `may` accepts. Ties prefer the last page.
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

    /// Learn from a step. `shares` are the shares of the pages that were read, by position in `pages`; NaN for the others.
    pub fn learn(&mut self, plane: u16, pages: &[Candidate], shares: impl Iterator<Item = f32>) {
        let Some(fit) = self.fits.get_mut(usize::from(plane)) else { return };
        fit.fade();
        for (page, share) in pages.iter().zip(shares).filter(|(page, share)| share.is_finite() && !page.always_kept) {
            // Pages with small shares are many, so each gets little weight.
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
        (pages[0].always_kept, pages[19].always_kept) = (true, true);
        pages[7] = candidate(7, 0.3, 0.2);
        pages[11] = candidate(11, 0.2, 0.3);
        let mut picker = Picker::new(1);
        picker.pick(0, 200, &mut pages, &Heads::default());
        assert_eq!(picked(&pages), [0, 7, 11, 19]);
        picker.pick(0, 1, &mut pages, &Heads::default());
        assert_eq!(picked(&pages), [0, 19], "hard pages are read whatever the budget is");
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
        // Shares equal what digests say; history says the reverse.
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
        assert_ne!(picked(&pages), [15, 16, 17, 18, 19], "the other plane has learnt nothing");
    }

    #[test]
    fn the_budget_moves_to_planes_with_wide_attention_and_stays_as_large() {
        // In plane 0 five pages have nearly all attention, in plane 1 all pages have the same.
        let narrow = |i: u32| if i < 5 { 0.19 } else { 0.05 / 95.0 };
        let mut picker = Picker::new(2);
        let mut pick = |permille| {
            let mut counts = [0; 2];
            for plane in 0..2 {
                let share = |i| if plane == 0 { narrow(i) } else { 0.01 };
                let mut pages: Vec<Candidate> = (0..100).map(|i| candidate(i, share(i), share(i))).collect();
                picker.pick(plane, permille, &mut pages, &Heads::default());
                counts[usize::from(plane)] = picked(&pages).len();
            }
            counts
        };
        assert_eq!(pick(200), [20, 20]);
        let settled = (0..200).map(|_| pick(200)).last().unwrap();
        assert!((1..=8).contains(&settled[0]), "{settled:?}");
        assert!(settled.iter().sum::<usize>().abs_diff(40) <= 2, "{settled:?}");
        assert_eq!(pick(1000), [100, 100], "a budget of all pages is all pages");
        let most = pick(800);
        assert!(most[0] < most[1] && most.iter().sum::<usize>().abs_diff(160) <= 3, "{most:?}");
    }

    #[test]
    fn no_head_starves_beside_heads_that_agree() {
        // Five heads look at the first pages, one head only at pages 20 to 22.
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
        pages[7].always_kept = true;
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

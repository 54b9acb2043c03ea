//! Finds the pages that a `bounded` step may skip: their digests prove that they hold too little attention to matter.
//!
//! A digest bounds every q·k of its page from above by u. So the page adds at most n·exp(u) to the sum of a query head's
//! softmax, where n is the page's number of tokens. The sum over the pages that were read is known exactly, S; the sum over all
//! pages is at least S. If the n·exp(u) of some pages add up to at most ε·S for every query head, those pages hold at most ε of
//! each head's attention, whatever their keys are.

/// Reserve for rounding in the engine's own scores and sums, as a share of ε. f32 products of a few hundred channels are off by
/// at most 1e-4 of a score's exponential, and so are sums.
const ROUNDING: f64 = 0.01;

/// The proof of one sequence in one plane of one step.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    /// Indices of the pages that could be skipped. `most` holds, for each page and query head, the logarithm of the most that
    /// the page adds.
    pages: Vec<u32>,
    most: Vec<f32>,
    heads: usize,
    /// For each query head, the logarithm of the most that the pages skipped so far add.
    skipped: Vec<f64>,
    /// The same as shares of the attention read.
    shares: Vec<f64>,
    order: Vec<(f64, u32)>,
}

impl Proof {
    /// Start a proof for this number of query heads, with no page to skip.
    pub fn begin(&mut self, heads: usize) {
        self.pages.clear();
        self.most.clear();
        self.heads = heads;
        self.skipped.clear();
        self.skipped.resize(heads, f64::NEG_INFINITY);
    }

    /// Add a page that could be skipped. For each query head, `bounds` yields a number that no product of the head with a key
    /// of the page exceeds.
    pub fn page(&mut self, index: u32, tokens: u32, bounds: impl Iterator<Item = f32>) {
        let tokens = f64::from(tokens).ln();
        self.pages.push(index);
        // Rounded up, so that the sum is still an upper bound.
        self.most.extend(bounds.take(self.heads).map(|bound| ((f64::from(bound) + tokens) as f32).next_up()));
        self.most.resize(self.pages.len() * self.heads, f32::INFINITY);
    }

    /// Remove the pages that `missing` does not accept: they have been read meanwhile.
    pub fn keep(&mut self, missing: impl Fn(u32) -> bool) {
        let heads = self.heads;
        let mut kept = 0;
        for at in 0..self.pages.len() {
            if missing(self.pages[at]) {
                self.pages[kept] = self.pages[at];
                self.most.copy_within(at * heads..(at + 1) * heads, kept * heads);
                kept += 1;
            }
        }
        self.pages.truncate(kept);
        self.most.truncate(kept * heads);
    }

    /// Find further pages that may be skipped, pass each to `skip`, and remove it from the proof. `sums` holds, for each query
    /// head, the logarithm of the sum of exponentials over everything that was read. Return an upper bound of the share, over
    /// heads, of everything skipped so far. Return `None` and skip nothing if the sums are unusable.
    pub fn skip(&mut self, epsilon: f64, sums: &[f32], mut skip: impl FnMut(u32)) -> Option<f64> {
        if sums.len() != self.heads || self.heads == 0 || !sums.iter().all(|sum| sum.is_finite()) {
            return None; // nothing was read, or the sums are not finite
        }
        let allowed = epsilon * (1.0 - ROUNDING);
        let (most, heads) = (&self.most, self.heads);
        let adds = |at: u32, head: usize| (f64::from(most[at as usize * heads + head]) - f64::from(sums[head])).exp();
        let worst = |at: u32| (0..heads).map(|head| adds(at, head)).fold(0.0, f64::max);
        self.order.clear();
        self.order.extend((0..self.pages.len() as u32).map(|at| (worst(at), at)));
        self.order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        self.shares.clear();
        self.shares.extend(self.skipped.iter().zip(sums).map(|(skipped, sum)| (skipped - f64::from(*sum)).exp()));
        let mut count = 0;
        for (_, at) in &self.order {
            if !(0..heads).all(|head| self.shares[head] + adds(*at, head) <= allowed) {
                break; // all later pages add more
            }
            (0..heads).for_each(|head| self.shares[head] += adds(*at, head));
            skip(self.pages[*at as usize]);
            count += 1;
        }
        for ((skipped, share), sum) in self.skipped.iter_mut().zip(&self.shares).zip(sums) {
            *skipped = share.ln() + f64::from(*sum);
        }
        let gone: Vec<u32> = self.order[..count].iter().map(|(_, at)| self.pages[*at as usize]).collect();
        self.keep(|index| !gone.contains(&index));
        // Omitted ÷ (read + omitted) is less than omitted ÷ read.
        Some(self.shares.iter().copied().fold(0.0, f64::max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_wire::digest;
    use proptest::prelude::*;

    const CHANNELS: usize = 8;
    const TOKENS: usize = 16;

    fn dot(q: &[f32], k: &[f32]) -> f64 {
        q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    }

    /// Split pages into read and unread ones, run the proof, and return the skipped pages and the worst true share of them.
    fn run(epsilon: f64, queries: &[Vec<f32>], pages: &[Vec<f32>], read: &[bool]) -> (Vec<u32>, f64) {
        let sum = |q: &[f32], page: &[f32]| page.chunks_exact(CHANNELS).map(|k| dot(q, k).exp()).sum::<f64>();
        let mut proof = Proof::default();
        proof.begin(queries.len());
        for (index, page) in pages.iter().enumerate().filter(|(index, _)| !read[*index]) {
            let mut digest = vec![0; digest::bytes(CHANNELS)];
            digest::build(page, CHANNELS, &mut digest).expect("sizes fit");
            let bounds = queries.iter().map(|q| digest::bound(q, &digest).expect("sizes fit"));
            proof.page(index as u32, TOKENS as u32, bounds);
        }
        let (mut skipped, mut read) = (Vec::new(), read.to_vec());
        // Like a step, read the remaining pages one by one, and retry the proof after each.
        loop {
            let sums: Vec<f32> = queries
                .iter()
                .map(|q| {
                    pages.iter().zip(&read).filter(|(_, read)| **read).map(|(p, _)| sum(q, p)).sum::<f64>().ln() as f32
                })
                .collect();
            proof.skip(epsilon, &sums, |index| skipped.push(index));
            match (0..pages.len()).find(|at| !read[*at] && !skipped.contains(&(*at as u32))) {
                Some(next) => {
                    read[next] = true;
                    proof.keep(|index| !read[index as usize]);
                }
                None => break,
            }
        }
        let share = |q: &Vec<f32>| {
            let of = |wanted: bool| {
                let which = pages.iter().enumerate().filter(|(at, _)| skipped.contains(&(*at as u32)) == wanted);
                which.map(|(_, page)| sum(q, page)).sum::<f64>()
            };
            of(true) / (of(true) + of(false))
        };
        let worst = queries.iter().map(share).fold(0.0, f64::max);
        (skipped, worst)
    }

    /// Build a page of keys near a point.
    fn near(centre: &[f32], spread: f32, mut next: impl FnMut() -> f32) -> Vec<f32> {
        (0..TOKENS).flat_map(|_| centre.iter().map(|c| c + spread * next()).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn far_pages_are_skipped_and_near_ones_are_not() {
        let q = vec![2.0; CHANNELS];
        let page = |c: f32| near(&[c; CHANNELS], 0.0, || 0.0);
        // Scores 16, −16, 15, −8, and a page without a usable bound.
        let pages = [page(1.0), page(-1.0), page(0.9375), page(-0.5), page(f32::NAN)];
        let (skipped, _) = run(0.01, std::slice::from_ref(&q), &pages[..4], &[true, false, false, false]);
        assert_eq!(skipped, [1, 3]);
        let mut proof = Proof::default();
        proof.begin(1);
        let mut digest = vec![0; digest::bytes(CHANNELS)];
        digest::build(&pages[4], CHANNELS, &mut digest).expect("sizes fit");
        proof.page(4, 16, std::iter::once(digest::bound(&q, &digest).expect("sizes fit")));
        proof.skip(0.5, &[1e30], |_| panic!("a page without a bound was skipped"));
        proof.skip(0.5, &[f32::NAN], |_| panic!("a page was skipped with a sum of NaN"));
        proof.skip(0.5, &[f32::NEG_INFINITY], |_| panic!("a page was skipped although nothing was read"));
        proof.skip(0.5, &[], |_| panic!("a page was skipped without sums"));
    }

    #[test]
    fn one_head_that_looks_there_keeps_a_page() {
        let page = |c: f32| near(&[c; CHANNELS], 0.0, || 0.0);
        let pages = [page(1.0), page(-1.0)];
        let (there, away) = (vec![2.0; CHANNELS], vec![-2.0; CHANNELS]);
        assert_eq!(run(0.01, std::slice::from_ref(&there), &pages, &[true, false]).0, [1]);
        assert!(run(0.01, &[there, away], &pages, &[true, false]).0.is_empty());
    }

    #[test]
    fn many_small_shares_are_added_up() {
        // Each of 100 pages holds 0.02 % of the attention read: fifty of them are one percent.
        let q = vec![1.0; CHANNELS];
        let low = (2e-4f64.ln() / CHANNELS as f64) as f32;
        let pages: Vec<Vec<f32>> = (0..101).map(|i| vec![if i == 0 { 0.0 } else { low }; TOKENS * CHANNELS]).collect();
        let mut read = vec![false; 101];
        read[0] = true;
        let (skipped, share) = run(0.01, &[q], &pages, &read);
        assert!((30..=55).contains(&skipped.len()) && share <= 0.01, "{} {share}", skipped.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        /// For all keys and queries, the skipped pages hold at most ε of each head's attention, by sums in f64.
        #[test]
        fn what_is_skipped_holds_at_most_epsilon(
            seed in any::<u64>(), heads in 1usize..4, count in 2usize..24, spread in 0.0f32..0.6, apart in 0.0f32..4.0,
            epsilon in prop_oneof![Just(0.0), Just(1e-4), 0.0f64..0.3]
        ) {
            let mut state = seed | 1;
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                ((state >> 40) as f32 / (1u32 << 24) as f32) * 2.0 - 1.0
            };
            let centres: Vec<Vec<f32>> = (0..count).map(|_| (0..CHANNELS).map(|_| apart * next()).collect()).collect();
            let pages: Vec<Vec<f32>> = centres.iter().map(|c| near(c, spread, &mut next)).collect();
            // Adversarial: each query is close to a key of a page that is not read at first.
            let queries: Vec<Vec<f32>> = (0..heads).map(|h| {
                let target = &pages[count - 1 - h % (count - 1)];
                target[..CHANNELS].iter().map(|k| k * 0.5 + 0.2 * next()).collect()
            }).collect();
            let read: Vec<bool> = (0..count).map(|i| i == 0 || next() > 0.5).collect();
            let (skipped, share) = run(epsilon, &queries, &pages, &read);
            prop_assert!(share <= epsilon, "{skipped:?} hold {share}, allowed {epsilon}");
        }
    }
}

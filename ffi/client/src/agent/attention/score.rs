//! Scores of queries by digests: shares of attention.

use super::Digests;
use kvtide_wire::digest::sketch;

/// A page that a query could read, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The page is sealed. It has digests, or could have them.
    Sealed(u32),
    /// The page is not sealed: it is always read and gets no share here.
    Open,
}

/// The digests' shares for a step's queries, by query head. Empty if there are no queries or no digests.
#[derive(Clone, Debug, Default)]
pub struct Heads {
    /// `[heads][pages]`: shares of attention over the sealed pages.
    shares: Vec<f32>,
    /// For each head, the logarithm of the sum that the shares are relative to.
    sums: Vec<f32>,
}

impl Heads {
    /// Build heads with these shares, relative to sums of 1.
    #[cfg(test)]
    pub fn of_shares(shares: &[&[f32]]) -> Heads {
        Heads { shares: shares.concat(), sums: vec![0.0; shares.len()] }
    }

    /// Build heads with `pages` pages each from the logarithms of the pages' sums of exponentials.
    #[cfg(test)]
    pub fn of_sums(sums: Vec<f32>, pages: usize) -> Heads {
        let mut heads = Heads { shares: sums, sums: Vec::new() };
        heads.sums.extend(heads.shares.chunks_exact_mut(pages).map(soften));
        heads
    }

    /// Remove all heads.
    pub fn clear(&mut self) {
        self.shares.clear();
        self.sums.clear();
    }

    /// Return the number of heads.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sums.len()
    }

    /// Return, for each head, its shares of `pages` pages and the logarithm of the sum of exponentials that they are relative
    /// to. Yields nothing if the shares are of another number of pages.
    pub fn of(&self, pages: usize) -> impl Iterator<Item = (&[f32], f32)> {
        let fits = pages > 0 && self.shares.len() == pages * self.sums.len();
        let shares = if fits { &self.shares[..] } else { &[] };
        shares.chunks_exact(pages.max(1)).zip(self.sums.iter().copied())
    }

    /// Compute the mean over heads of each page's shares.
    pub fn mean(&self, pages: usize, mean: &mut Vec<f32>) {
        mean.clear();
        mean.resize(pages, 0.0);
        let weight = 1.0 / self.count().max(1) as f32;
        for (shares, _) in self.of(pages) {
            mean.iter_mut().zip(shares).for_each(|(mean, share)| *mean += weight * share);
        }
    }
}

/// Computes shares; keeps its working memory.
#[derive(Default)]
pub struct Scorer {
    column: Vec<f32>,
}

impl Scorer {
    /// Compute, for each query head, the share of attention of each page in `pages` over the sealed ones. A sealed page without
    /// a digest counts as much as the best one. `queries` are `[heads][channels]`, scaled as for the softmax; neighbouring
    /// heads share a KV head. Return false and compute nothing if their number does not fit the key layout.
    pub fn shares(&mut self, digests: &Digests, pages: &[Known], queries: &[f32], heads: &mut Heads) -> bool {
        heads.clear();
        let Some(group) = group_of(digests, queries) else { return false };
        let channels = usize::from(digests.keys().channels);
        let (count, width) = (queries.len() / channels, pages.len());
        heads.sums.resize(count, f32::NEG_INFINITY);
        heads.shares.resize(count * width, f32::NEG_INFINITY);
        if width == 0 {
            return true;
        }
        self.column.resize(group, 0.0);
        let of_head = heads.shares.chunks_exact_mut(group * width).zip(queries.chunks_exact(group * channels));
        for (head, (sums, queries)) in of_head.enumerate() {
            for (at, page) in pages.iter().enumerate() {
                let Known::Sealed(page) = page else { continue };
                let known = digests.get(*page, head);
                let scored = known.map(|sketch| sketch::score(queries, channels, sketch, 1.0, &mut self.column));
                if !matches!(scored, Some(Ok(()))) {
                    self.column.fill(f32::INFINITY);
                }
                for (q, sum) in self.column.iter().enumerate() {
                    sums[q * width + at] = *sum;
                }
            }
        }
        for (sums, sum) in heads.shares.chunks_exact_mut(width).zip(&mut heads.sums) {
            *sum = soften(sums);
        }
        true
    }
}

/// Turn sums of exponentials, given as logarithms, into shares, and return the logarithm of their sum. A sum of infinity
/// (nothing is known) counts as much as the best one.
fn soften(sums: &mut [f32]) -> f32 {
    let best = sums.iter().copied().filter(|sum| sum.is_finite()).fold(f32::NEG_INFINITY, f32::max);
    let best = if best == f32::NEG_INFINITY { 0.0 } else { best };
    for sum in sums.iter_mut() {
        *sum = if sum.is_finite() || *sum == f32::NEG_INFINITY { (*sum - best).exp() } else { 1.0 };
    }
    let total: f32 = sums.iter().sum();
    if total > 0.0 {
        sums.iter_mut().for_each(|share| *share /= total);
    }
    best + total.ln()
}

/// Return the number of query heads for each KV head, if the number of queries fits the key layout.
#[must_use]
pub fn group_of(digests: &Digests, queries: &[f32]) -> Option<usize> {
    let one = usize::from(digests.keys().heads) * usize::from(digests.keys().channels);
    (!queries.is_empty() && queries.len().is_multiple_of(one)).then(|| queries.len() / one)
}

#[cfg(test)]
mod tests {
    use super::super::{DigestOptions, Element, KeyLayout};
    use super::*;

    fn digests() -> Digests {
        let keys = KeyLayout {
            element: Element::F32,
            heads: 2,
            channels: 2,
            tile_tokens: 1,
            offset: 0,
            head_stride: 8,
            tile_stride: 0,
            token_stride: 0,
            channel_stride: 4,
        };
        let options = DigestOptions { keys, pages: 8, groups: 1 };
        let mut digests = Digests::new(&options, 4, 1, 1).expect("small");
        let page = |a: f32, b: f32| [a, 0.0, b, 0.0].into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
        digests.build(0, &page(1.0, 0.0));
        digests.build(1, &page(0.0, 0.0));
        digests.build(2, &page(0.0, 2.0));
        digests
    }

    #[test]
    fn shares_are_a_softmax_over_what_is_sealed() {
        let digests = digests();
        let (mut scorer, mut heads, mut shares) = (Scorer::default(), Heads::default(), Vec::new());
        let mut score = |pages: &[Known], queries: &[f32]| {
            let fits = scorer.shares(&digests, pages, queries, &mut heads);
            heads.mean(pages.len(), &mut shares);
            (fits, heads.clone(), shares.clone())
        };
        // Two query heads for each KV head. Those of the second look along the second channel, where the keys of pages 0 and 1
        // are zero.
        let queries = [4.0, 0.0, 4.0, 0.0, 0.0, 1.0, 0.0, 1.0];
        let pages = [0, 1, 2].map(Known::Sealed);
        let (fits, heads, shares) = score(&[pages[0], pages[1], Known::Open, pages[2]], &queries);
        assert!(fits && (shares.iter().sum::<f32>() - 1.0).abs() < 1e-4 && shares[2] == 0.0, "{shares:?}");
        assert!(shares[0] > 0.5 && shares[1] < 0.3 && shares[3] < 0.3, "{shares:?}");
        let by_head: Vec<(&[f32], f32)> = heads.of(4).collect();
        assert_eq!((heads.count(), by_head.len(), heads.of(3).count()), (4, 4, 0));
        assert!(by_head.iter().all(|(shares, _)| (shares.iter().sum::<f32>() - 1.0).abs() < 1e-4 && shares[2] == 0.0));
        assert!(by_head[0].0[0] > 0.9 && by_head[2].0[3] > by_head[2].0[0], "{by_head:?}");
        // One token a page: the sum of the first head is that of e⁴, e⁰ and e⁰, apart from the sketches' rounding.
        assert!((by_head[0].1 - (4f32.exp() + 2.0).ln()).abs() < 0.5, "{by_head:?}");
        // Page 3 has no digest: it counts as much as the best page.
        let (_, _, shares) = score(&[pages[0], pages[1], Known::Sealed(3)], &queries);
        assert!(shares[2] >= shares[0], "{shares:?}");
        assert!(!score(&pages, &[1.0; 3]).0 && !score(&pages, &[]).0);
        let (fits, _, shares) = score(&pages, &[f32::NAN; 4]);
        assert!(
            fits && shares.iter().all(|share| (share - 1.0 / 3.0).abs() < 1e-6),
            "NaN queries give equal shares: {shares:?}"
        );
        assert!(score(&[], &queries).0);
    }
}

//! What digests make of queries: shares of attention, and bounds.

use super::Digests;
use kvtide_wire::digest::{self, sketch};

/// A page that a query could read, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It is sealed, and has digests or could.
    Sealed(u32),
    /// It is not sealed: it is read anyhow, and has no share here.
    Open,
}

/// Computes shares; keeps its working room.
#[derive(Default)]
pub struct Scorer {
    /// `[query heads of a KV head][pages]`.
    sums: Vec<f32>,
    column: Vec<f32>,
}

impl Scorer {
    /// For each of `pages`, the mean over query heads of its share of attention over the sealed ones; one of which nothing is known
    /// counts as much as the best. `queries` are `[heads][channels]`, neighbouring heads sharing a KV head, scaled as the softmax
    /// is. False, with nothing computed: they are not as many numbers as the layout of keys says.
    pub fn shares(&mut self, digests: &Digests, pages: &[Known], queries: &[f32], shares: &mut Vec<f32>) -> bool {
        shares.clear();
        let Some(group) = group_of(digests, queries) else { return false };
        let channels = usize::from(digests.keys().channels);
        shares.resize(pages.len(), 0.0);
        self.sums.resize(group * pages.len(), 0.0);
        self.column.resize(group, 0.0);
        let weight = 1.0 / (queries.len() / channels) as f32;
        for (head, queries) in queries.chunks_exact(group * channels).enumerate() {
            for (at, page) in pages.iter().enumerate() {
                let known = match page {
                    Known::Sealed(page) => digests.get(*page, head).map(|(sketch, _)| sketch),
                    Known::Open => {
                        (0..group).for_each(|q| self.sums[q * pages.len() + at] = f32::NEG_INFINITY);
                        continue;
                    }
                };
                let scored = known.map(|sketch| sketch::score(queries, channels, sketch, 1.0, &mut self.column));
                if !matches!(scored, Some(Ok(()))) {
                    self.column.fill(f32::INFINITY);
                }
                for (q, sum) in self.column.iter().enumerate() {
                    self.sums[q * pages.len() + at] = *sum;
                }
            }
            for sums in self.sums.chunks_exact(pages.len().max(1)) {
                sketch::add_shares(sums, weight, shares);
            }
        }
        true
    }
}

/// Query heads of a KV head, if queries are as many as the layout of keys allows.
#[must_use]
pub fn group_of(digests: &Digests, queries: &[f32]) -> Option<usize> {
    let one = usize::from(digests.keys().heads) * usize::from(digests.keys().channels);
    (!queries.is_empty() && queries.len().is_multiple_of(one)).then(|| queries.len() / one)
}

/// For each query head, a number that no product of it with a key of the page exceeds; infinite if nothing is known of the page.
pub fn bounds<'a>(
    digests: &'a Digests,
    page: Option<u32>,
    queries: &'a [f32],
    group: usize,
) -> impl Iterator<Item = f32> + 'a {
    queries.chunks_exact(usize::from(digests.keys().channels)).enumerate().map(move |(at, query)| {
        let digest = page.and_then(|page| digests.get(page, at / group)).map(|(_, bound)| bound);
        digest.and_then(|digest| digest::bound(query, digest).ok()).unwrap_or(f32::INFINITY)
    })
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
        let options = DigestOptions { keys, pages: 8, groups: 1, bounds: true };
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
        let mut scorer = Scorer::default();
        let mut shares = Vec::new();
        // Two query heads for each KV head; those of the second look along the second channel, where all keys are zero.
        let queries = [4.0, 0.0, 4.0, 0.0, 0.0, 1.0, 0.0, 1.0];
        let pages = [0, 1, 2].map(Known::Sealed);
        assert!(scorer.shares(&digests, &[pages[0], pages[1], Known::Open, pages[2]], &queries, &mut shares));
        assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-4 && shares[2] == 0.0, "{shares:?}");
        assert!(shares[0] > 0.5 && shares[1] < 0.3 && shares[3] < 0.3, "{shares:?}");
        // Nothing is known of page 3: it may be as good as the best.
        assert!(scorer.shares(&digests, &[pages[0], pages[1], Known::Sealed(3)], &queries, &mut shares));
        assert!(shares[2] >= shares[0], "{shares:?}");
        assert!(!scorer.shares(&digests, &pages, &[1.0; 3], &mut shares) && shares.is_empty());
        assert!(!scorer.shares(&digests, &pages, &[], &mut shares));
        assert!(scorer.shares(&digests, &pages, &[f32::NAN; 4], &mut shares));
        assert!(shares.iter().all(|share| (share - 1.0 / 3.0).abs() < 1e-6), "a query that is no number says nothing");
        assert!(scorer.shares(&digests, &[], &queries, &mut shares) && shares.is_empty());
    }

    #[test]
    fn bounds_are_each_head_s_own() {
        let digests = digests();
        let queries = [4.0, 0.0, -4.0, 0.0, 0.5, 0.0, 0.0, 1.0];
        let found: Vec<f32> = bounds(&digests, Some(0), &queries, 2).collect();
        assert!((4.0..4.1).contains(&found[0]) && (-4.0..-3.9).contains(&found[1]), "{found:?}");
        assert_eq!(found[2..], [0.0, 0.0]);
        assert!(
            bounds(&digests, Some(3), &queries, 2)
                .chain(bounds(&digests, None, &queries, 2))
                .all(|b| b == f32::INFINITY)
        );
    }
}

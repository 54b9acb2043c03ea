//! Choice of the pages of a sequence's plane that should be in tier 0: a pure function of scores.

/// Result of a cut: the first `keep` of `order` should be in tier 0, the others need not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    pub keep: usize,
    /// Score of the last page that is kept.
    pub last: f32,
}

/// Sort key of a page: ascending keys have descending scores, and of equal scores the later place comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(super) struct Rank(u64);

impl Rank {
    /// Create the key of a page from its score and its place among the scored pages.
    pub fn new(score: f32, place: u32) -> Rank {
        let bits = score.to_bits();
        // As integers, negative floats sort in reverse.
        let rising = bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 };
        Rank(!(u64::from(rising) << 32 | u64::from(place)))
    }

    /// Return the place of the page among the scored pages.
    pub fn place(self) -> usize {
        !self.0 as u32 as usize
    }
}

/// Order pages so that the `keep` best come first; pages with an infinite score are the best. O(pages).
pub(super) fn cut(scores: &[f32], keep: usize, order: &mut [Rank]) -> Cut {
    let keep = keep.min(order.len());
    if keep == 0 {
        return Cut { keep, last: f32::INFINITY };
    }
    let (_, last, _) = order.select_nth_unstable(keep - 1);
    Cut { keep, last: scores[last.place()] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranks(scores: &[f32]) -> Vec<Rank> {
        scores.iter().zip(0..).map(|(score, place)| Rank::new(*score, place)).collect()
    }

    proptest! {
        #[test]
        fn no_page_outside_beats_one_inside(scores in prop::collection::vec(-20.0f32..20.0, 0..200), keep in 0usize..220) {
            let mut order = ranks(&scores);
            let cut = cut(&scores, keep, &mut order);
            prop_assert_eq!(cut.keep, keep.min(scores.len()));
            let (inside, outside) = order.split_at(cut.keep);
            let least = inside.iter().map(|i| scores[i.place()]).fold(f32::INFINITY, f32::min);
            prop_assert_eq!(cut.last, least);
            prop_assert!(outside.iter().all(|i| scores[i.place()] <= least));
            let mut all: Vec<usize> = order.iter().map(|i| i.place()).collect();
            all.sort_unstable();
            prop_assert!(all.iter().copied().eq(0..scores.len()));
        }
    }

    #[test]
    fn pages_that_must_stay_come_first_and_of_equals_the_newer() {
        let scores = [-1.0, f32::INFINITY, -1.0, -1.0, f32::NEG_INFINITY];
        let mut order = ranks(&scores);
        assert_eq!(cut(&scores, 3, &mut order).last, -1.0);
        let mut inside: Vec<usize> = order[..3].iter().map(|i| i.place()).collect();
        inside.sort_unstable();
        assert_eq!(inside, [1, 2, 3]);
    }
}

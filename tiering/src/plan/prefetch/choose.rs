//! Which pages of a sequence's plane shall be in tier 0: a pure function of scores.

/// What becomes of pages: the first `keep` of `order` shall stand in tier 0, the others need not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    pub keep: usize,
    /// Score of the last page that stays.
    pub last: f32,
}

/// A page in an order: ascending numbers have falling scores, and of equal ones the later place first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(super) struct Rank(u64);

impl Rank {
    /// A page's, by its score and its place among those that are scored.
    pub fn new(score: f32, place: u32) -> Rank {
        let bits = score.to_bits();
        // As whole numbers, negative floats fall while they rise.
        let rising = bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 };
        Rank(!(u64::from(rising) << 32 | u64::from(place)))
    }

    /// Its place among those that were scored.
    pub fn place(self) -> usize {
        !self.0 as u32 as usize
    }
}

/// Orders pages so that the `keep` best come first, best of all the ones whose score is infinite. O(pages).
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

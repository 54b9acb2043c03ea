//! Which pages of a sequence's plane shall be in tier 0: a pure function of scores.

/// What becomes of pages: the first `keep` of `order` shall stand in tier 0, the others need not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    pub keep: usize,
    /// Score of the last page that stays.
    pub last: f32,
}

/// Orders page indices so that the `keep` best come first, best of all the ones whose score is infinite. Equal scores: the newer
/// page. O(pages).
pub(super) fn cut(scores: &[f32], keep: usize, order: &mut Vec<u32>) -> Cut {
    order.clear();
    order.extend(0..scores.len() as u32);
    let keep = keep.min(scores.len());
    if keep == 0 {
        return Cut { keep, last: f32::INFINITY };
    }
    let by_score = |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(b.cmp(a));
    let (_, last, _) = order.select_nth_unstable_by(keep - 1, by_score);
    Cut { keep, last: scores[*last as usize] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_page_outside_beats_one_inside(scores in prop::collection::vec(-20.0f32..0.0, 0..200), keep in 0usize..220) {
            let mut order = Vec::new();
            let cut = cut(&scores, keep, &mut order);
            prop_assert_eq!(cut.keep, keep.min(scores.len()));
            let (inside, outside) = order.split_at(cut.keep);
            let least = inside.iter().map(|&i| scores[i as usize]).fold(f32::INFINITY, f32::min);
            prop_assert_eq!(cut.last, least);
            prop_assert!(outside.iter().all(|&i| scores[i as usize] <= least));
            let mut all = order.clone();
            all.sort_unstable();
            prop_assert!(all.iter().copied().eq(0..scores.len() as u32));
        }
    }

    #[test]
    fn pages_that_must_stay_come_first_and_of_equals_the_newer() {
        let mut order = Vec::new();
        let scores = [-1.0, f32::INFINITY, -1.0, -1.0, f32::NEG_INFINITY];
        assert_eq!(cut(&scores, 3, &mut order).last, -1.0);
        let mut inside = order[..3].to_vec();
        inside.sort_unstable();
        assert_eq!(inside, [1, 2, 3]);
    }
}

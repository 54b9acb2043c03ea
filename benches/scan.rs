//! Minimum page transfers of a cyclic scan: every step reads all pages, and they do not all fit into the frames.
//!
//! The demo and the replay compare their counts with it; it depends on neither.

/// Return how many pages a step must bring from below `tiers` (frames of each tier, and how many of them are used for streaming): 0
/// if all pages fit, else all but those that stay in the other frames.
pub(crate) fn excess(pages: u64, tiers: &[(u32, u32)]) -> u64 {
    let frames: u64 = tiers.iter().map(|(frames, _)| u64::from(*frames)).sum();
    let kept: u64 = tiers.iter().map(|(frames, streamed)| u64::from(frames.saturating_sub(*streamed))).sum();
    if pages <= frames { 0 } else { pages - kept }
}

#[cfg(test)]
mod tests {
    use super::excess;

    #[test]
    fn what_streams_through_does_not_stay() {
        assert_eq!([excess(9, &[(9, 8)]), excess(10, &[(9, 8)]), excess(10, &[(4, 8)])], [0, 9, 10]);
        assert_eq!([excess(10, &[(6, 2), (4, 1)]), excess(11, &[(6, 2), (4, 1)])], [0, 4]);
    }
}

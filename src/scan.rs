//! The least that must move where every page is read at every step and not all of them fit: a cyclic scan.
//!
//! What the demo and the replay compare with; it knows neither.

/// Pages that a step must bring from below `tiers` (frames of each tier, and how many of them pages stream through): nothing where
/// all fit, else all but those that stay in the other frames.
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

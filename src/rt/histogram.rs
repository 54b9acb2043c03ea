//! Latency histogram with power-of-two buckets: cheap enough for every transfer, precise enough for the magnitude of percentiles.

use serde::{Deserialize, Serialize};

/// Buckets of a [`Histogram`]: the last but one ends at 2³⁰ µs, about 18 minutes.
pub const BUCKETS: usize = 32;

/// Durations in microseconds. Bucket 0 counts durations below 1, bucket `n` those of at least 2ⁿ⁻¹ and less than 2ⁿ, the last one
/// all longer ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Histogram {
    /// Counts by bucket.
    pub buckets: [u64; BUCKETS],
    /// Sum of all durations, in microseconds.
    pub sum_us: u64,
}

impl Histogram {
    /// Add a duration.
    pub fn add(&mut self, us: u64) {
        let bucket = (u64::BITS - us.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stand_below_their_bound() {
        let mut histogram = Histogram::default();
        for us in [0, 1, 2, 3, 4, 1023, 1024, 1 << 30, u64::MAX] {
            histogram.add(us);
        }
        let filled = |n: usize| histogram.buckets[n];
        assert_eq!(
            [filled(0), filled(1), filled(2), filled(3), filled(10), filled(11), filled(31)],
            [1, 1, 2, 1, 1, 1, 2]
        );
        assert_eq!(histogram.sum_us, u64::MAX, "the sum saturates");
    }
}

//! Write budget of NVMe: a token bucket that fills by time, so that a drive lasts for its planned lifetime.
//!
//! Every byte written is charged. The bytes of admitted blocks are *committed* and subtracted from the bytes that may still be
//! admitted, so that a decision sees the cost of earlier ones. Forced writes were not committed: they leave debt, which is paid off
//! before further admissions. A new space begins with five minutes' worth. One that recovers blocks begins empty: a daemon that is
//! restarted repeatedly writes no more than one that runs continuously.

use serde::{Deserialize, Serialize};

/// Microseconds per day.
const DAY_US: u64 = 24 * 3600 * 1_000_000;
/// Unused budget is saved for this fraction of a day: one hour. Spending a whole night's savings in one burst would fill NVMe with
/// the first blocks that come.
const SAVED_PER_DAY: u64 = 24;
/// For the admission rule the bucket counts as full at five minutes' worth: longer than the pauses between requests, and short
/// enough that the rule follows the load.
const FULL_PER_DAY: u64 = 24 * 12;
/// The value of [`Bucket::fill`] for a full bucket.
pub(crate) const FULL: u32 = 1024;
/// Maximum rate; higher ones are reduced to it. 10 GB/s for a day is a thousandth of it.
const RATE_MAX: u64 = 1 << 60;

/// Token bucket of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bucket {
    /// Bytes per day; 0: unlimited.
    per_day: u64,
    /// Minimum capacity of the bucket: one admission.
    least: u64,
    /// Bytes that may be written; negative: debt.
    left: i64,
    /// Accrued fraction of a byte, in bytes × microseconds per day.
    part: u64,
    /// Time up to which bytes have accrued; `None` before the first event.
    at: Option<u64>,
}

impl Bucket {
    /// Create a bucket that counts as full; the largest admission takes `least` bytes.
    pub fn new(per_day: u64, least: u64) -> Bucket {
        let mut bucket = Bucket { per_day: per_day.min(RATE_MAX), least, left: 0, part: 0, at: None };
        if per_day > 0 {
            bucket.left = i64::try_from(bucket.full()).unwrap_or(i64::MAX);
        }
        bucket
    }

    /// Remove all bytes that may be written; debt stays.
    pub fn empty(&mut self) {
        self.left = self.left.min(0);
    }

    /// Advance the time.
    pub fn advance(&mut self, now_us: u64) {
        let passed = now_us.saturating_sub(self.at.replace(now_us).unwrap_or(now_us));
        if self.per_day == 0 || passed == 0 {
            return;
        }
        let accrued = u128::from(passed) * u128::from(self.per_day) + u128::from(self.part);
        let bytes = i64::try_from(accrued / u128::from(DAY_US)).unwrap_or(i64::MAX);
        self.part = (accrued % u128::from(DAY_US)) as u64;
        self.left = self.left.saturating_add(bytes).min(self.saved_max());
    }

    /// Change the rate. Savings and debt stay within the limits of the new rate, and savings shrink with it: the bytes that a space
    /// saved belong to the spaces that share the disks.
    pub fn set_rate(&mut self, per_day: u64) {
        let before = std::mem::replace(&mut self.per_day, per_day.min(RATE_MAX));
        if self.left > 0 && self.per_day < before {
            self.left = (i128::from(self.left) * i128::from(self.per_day) / i128::from(before)) as i64;
        }
        self.left = match self.per_day {
            0 => 0,
            _ => self.left.clamp(-self.owed_max(), self.saved_max()),
        };
    }

    /// Return the fill level, out of [`FULL`], without the committed bytes.
    pub fn fill(&self, committed: u64) -> u32 {
        if self.per_day == 0 {
            return FULL;
        }
        let full = u128::from(self.full());
        (u128::from(self.free(committed)) * u128::from(FULL) / full).min(u128::from(FULL)) as u32
    }

    /// Return the microseconds until the largest admission would be free if nothing were now; debt is paid before.
    pub fn next_us(&self) -> u64 {
        let bytes = u128::from(self.least.max(1)) + u128::from(self.debt());
        let per_day = u128::from(self.per_day);
        (bytes * u128::from(DAY_US)).checked_div(per_day).map_or(0, |us| u64::try_from(us).unwrap_or(u64::MAX))
    }

    /// Return the bytes at which the bucket counts as full.
    fn full(&self) -> u64 {
        (self.per_day / FULL_PER_DAY).max(self.least).max(1)
    }

    /// Return the bytes that may be admitted in addition to the committed ones.
    pub fn free(&self, committed: u64) -> u64 {
        match self.per_day {
            0 => u64::MAX,
            _ => u64::try_from(self.left).unwrap_or(0).saturating_sub(committed),
        }
    }

    /// Charge written bytes. Debt beyond one day's worth is forgiven, because the limit is per day.
    pub fn charge(&mut self, bytes: u64) {
        if self.per_day > 0 {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            self.left = self.left.saturating_sub(bytes).max(-self.owed_max());
        }
    }

    /// Return the bytes per day; 0: unlimited.
    pub fn per_day(&self) -> u64 {
        self.per_day
    }

    /// Return the bytes written beyond the accrued budget.
    pub fn debt(&self) -> u64 {
        if self.left < 0 { self.left.unsigned_abs() } else { 0 }
    }

    fn saved_max(&self) -> i64 {
        i64::try_from((self.per_day / SAVED_PER_DAY).max(self.least)).unwrap_or(i64::MAX)
    }

    fn owed_max(&self) -> i64 {
        i64::try_from(self.per_day).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: u64 = DAY_US / 24;

    fn empty(per_day: u64, least: u64) -> Bucket {
        let mut bucket = Bucket::new(per_day, least);
        bucket.empty();
        bucket
    }

    proptest! {
        /// A caller that writes only free bytes never writes more than has accrued, to the byte, and always gets the bytes accrued
        /// within the last hour.
        #[test]
        fn what_is_free_never_exceeds_what_has_accrued(
            per_day in 1u64..1 << 40,
            least in 1u64..1 << 20,
            ops in prop::collection::vec((any::<bool>(), 0u64..HOUR / 2, 0u64..=100), 1..200),
        ) {
            let mut bucket = empty(per_day, least);
            bucket.advance(1_000);
            let (mut now, mut spent, mut saved) = (1_000u64, 0u64, 0u64);
            for (spend, passed, percent) in ops {
                let free = bucket.free(0);
                if spend {
                    let bytes = (u128::from(free) * u128::from(percent) / 100) as u64;
                    bucket.charge(bytes);
                    spent += bytes;
                    prop_assert_eq!(bucket.free(0), free - bytes);
                    saved = 0;
                } else {
                    now += passed;
                    bucket.advance(now);
                    saved += passed;
                }
                let accrued = |us: u64| (u128::from(us) * u128::from(per_day) / u128::from(DAY_US)) as u64;
                prop_assert!(spent + bucket.free(0) <= accrued(now - 1_000));
                prop_assert!(bucket.free(0) <= (per_day / 24).max(least), "saved for more than an hour");
                prop_assert!(bucket.free(0) >= accrued(saved.min(HOUR)).min(per_day / 24), "less than was saved");
                prop_assert!(bucket.debt() == 0 && bucket.fill(0) <= FULL);
            }
        }

        /// Small steps accrue the same bytes as one large step.
        #[test]
        fn nothing_is_lost_between_two_looks(per_day in 1u64..1 << 50, steps in prop::collection::vec(1u64..HOUR / 100, 1..99)) {
            let (mut often, mut once) = (empty(per_day, 0), empty(per_day, 0));
            often.advance(7);
            once.advance(7);
            let mut now = 7;
            for step in steps {
                now += step;
                often.advance(now);
            }
            once.advance(now);
            prop_assert_eq!(often, once);
        }
    }

    #[test]
    fn it_begins_full_and_is_empty_once_emptied_whatever_the_clock_says() {
        let mut bucket = Bucket::new(24_000, 1);
        bucket.advance(u64::MAX / 2);
        assert_eq!((bucket.free(0), bucket.fill(0)), (24_000 / FULL_PER_DAY, FULL));
        bucket.empty();
        assert_eq!((bucket.free(0), bucket.fill(0)), (0, 0));
        assert_eq!(Bucket::new(1, 1_000).free(0), 1_000, "the first admission fits");
        bucket.advance(u64::MAX / 2 + 5 * HOUR);
        assert_eq!(bucket.free(0), 1000, "at most one hour is saved");
    }

    #[test]
    fn what_was_not_committed_leaves_debt_of_a_day_at_most() {
        let mut bucket = empty(24_000, 1);
        bucket.advance(0);
        bucket.charge(3_000);
        assert_eq!((bucket.debt(), bucket.free(0), bucket.fill(0)), (3_000, 0, 0));
        bucket.advance(3 * HOUR);
        assert_eq!((bucket.debt(), bucket.free(0)), (0, 0));
        bucket.advance(4 * HOUR);
        assert_eq!(bucket.free(0), 1_000);
        bucket.charge(1 << 40);
        assert_eq!(bucket.debt(), 24_000);
    }

    #[test]
    fn what_is_committed_is_seen_by_the_next_decision() {
        let mut bucket = empty(FULL_PER_DAY * 2048, 1);
        bucket.advance(0);
        bucket.advance(DAY_US / FULL_PER_DAY);
        assert_eq!((bucket.fill(0), bucket.free(0)), (FULL, 2048));
        assert_eq!((bucket.fill(1024), bucket.free(1024)), (FULL / 2, 1024));
        assert_eq!((bucket.fill(9999), bucket.free(9999)), (0, 0));
        bucket.charge(1024);
        assert_eq!((bucket.fill(512), bucket.free(512)), (FULL / 4, 512));
    }

    #[test]
    fn a_new_rate_holds_at_once_and_none_is_no_bound() {
        let mut bucket = empty(24_000, 1);
        bucket.advance(0);
        bucket.advance(HOUR);
        bucket.set_rate(2_400);
        assert_eq!(bucket.free(0), 100, "an hour's worth of the new rate");
        bucket.charge(50_000);
        bucket.set_rate(1_200);
        assert_eq!(bucket.debt(), 1_200);
        bucket.set_rate(0);
        bucket.charge(1 << 50);
        assert_eq!((bucket.fill(1 << 50), bucket.free(1 << 50), bucket.debt()), (FULL, u64::MAX, 0));
        bucket.set_rate(2_400);
        assert_eq!(bucket.free(0), 0, "a bound that is new begins empty");
    }

    #[test]
    fn the_largest_admission_fits_into_a_small_bucket() {
        let mut bucket = empty(24, 1_000);
        bucket.advance(0);
        bucket.advance(2_000 * HOUR);
        assert_eq!((bucket.fill(0), bucket.free(0)), (FULL, 1_000));
    }
}

//! Budget of bytes and requests a day: two token buckets that fill over the day.
//!
//! A copy is admitted while both buckets have something left. Its full cost may leave a debt, which is paid off before the next copy, so
//! that a bucket smaller than a run still admits one. The buckets begin empty: a relay that restarts again and again spends no more than
//! one that runs on. It has no clock. Time is a duration since any fixed moment.

use std::time::Duration;

/// Microseconds of a day.
const DAY_US: i128 = 24 * 3600 * 1_000_000;
/// Savings are kept for an hour, as by the daemon's write budget: a whole night's savings would go to the first prefixes of
/// the morning.
const SAVED_US: i128 = 3600 * 1_000_000;

/// Costs of a copy, or of a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of objects.
    pub bytes: u64,
    /// Requests that an object store charges for.
    pub requests: u64,
}

/// The budget of a relay.
#[derive(Debug)]
pub struct Budget {
    bytes: Option<Bucket>,
    requests: Option<Bucket>,
}

impl Budget {
    /// Begin without savings. `None` is no limit.
    pub fn new(bytes_per_day: Option<u64>, requests_per_day: Option<u64>) -> Budget {
        Budget { bytes: bytes_per_day.map(Bucket::new), requests: requests_per_day.map(Bucket::new) }
    }

    /// Charge a copy, or return how long none is admitted.
    ///
    /// # Errors
    ///
    /// The time to wait.
    pub fn take(&mut self, now: Duration, cost: Cost) -> Result<(), Duration> {
        self.buckets().for_each(|bucket| bucket.advance(now));
        match self.buckets().filter_map(|bucket| bucket.wait()).max() {
            Some(wait) => Err(wait),
            None => {
                self.charge(cost, 1);
                Ok(())
            }
        }
    }

    /// Return what a copy was charged and did not cost.
    pub fn give_back(&mut self, cost: Cost) {
        self.charge(cost, -1);
    }

    /// Return the bytes and the requests that are left; 0 while there is a debt.
    pub fn left(&self) -> (Option<u64>, Option<u64>) {
        let left = |bucket: &Option<Bucket>| bucket.as_ref().map(Bucket::left);
        (left(&self.bytes), left(&self.requests))
    }

    fn charge(&mut self, cost: Cost, sign: i128) {
        for (bucket, amount) in [(&mut self.bytes, cost.bytes), (&mut self.requests, cost.requests)] {
            bucket.iter_mut().for_each(|bucket| bucket.charge(sign * i128::from(amount)));
        }
    }

    fn buckets(&mut self) -> impl Iterator<Item = &mut Bucket> {
        self.bytes.iter_mut().chain(&mut self.requests)
    }
}

#[derive(Debug)]
struct Bucket {
    per_day: i128,
    /// Units × microseconds of a day, so that no fraction is lost; negative: a debt.
    left: i128,
    at: Duration,
}

impl Bucket {
    fn new(per_day: u64) -> Bucket {
        Bucket { per_day: i128::from(per_day.max(1)), left: 0, at: Duration::ZERO }
    }

    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_micros() as i128;
        // The rest below a microsecond counts the next time.
        self.at += Duration::from_micros(passed as u64);
        self.add(passed.min(2 * DAY_US) * self.per_day);
    }

    fn charge(&mut self, amount: i128) {
        self.add(-amount * DAY_US);
    }

    /// A debt of more than a day is forgiven: the limit is one of a day.
    fn add(&mut self, part: i128) {
        self.left = (self.left + part).clamp(-self.per_day * DAY_US, self.per_day * SAVED_US);
    }

    fn wait(&self) -> Option<Duration> {
        let missing = 1 - self.left;
        let us = missing.div_euclid(self.per_day) + i128::from(missing.rem_euclid(self.per_day) > 0);
        (missing > 0).then(|| Duration::from_micros(us as u64))
    }

    fn left(&self) -> u64 {
        (self.left.max(0) / DAY_US) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn cost(bytes: u64, requests: u64) -> Cost {
        Cost { bytes, requests }
    }

    #[test]
    fn it_begins_empty_and_saves_one_hour() {
        let mut budget = Budget::new(Some(2400), None);
        assert_eq!(budget.take(Duration::ZERO, cost(1, 9)), Err(Duration::from_micros(1)));
        budget.take(30 * HOUR, cost(0, 9)).unwrap();
        assert_eq!(budget.left(), (Some(100), None));
        budget.take(30 * HOUR, cost(150, 9)).unwrap();
        assert_eq!(budget.left(), (Some(0), None), "a debt");
        let wait = budget.take(30 * HOUR, cost(1, 1)).unwrap_err();
        assert!(wait > HOUR / 2 && wait < HOUR / 2 + Duration::from_millis(1), "{wait:?}");
        budget.take(30 * HOUR + wait, cost(1, 1)).unwrap();
        assert!(Budget::new(None, None).take(Duration::ZERO, cost(u64::MAX, u64::MAX)).is_ok());
    }

    #[test]
    fn both_limits_hold_and_what_was_not_spent_comes_back() {
        let mut budget = Budget::new(Some(24_000), Some(24));
        budget.take(HOUR, cost(10, 1)).unwrap();
        assert!(budget.take(HOUR, cost(10, 1)).is_err(), "requests are used up, bytes are not");
        budget.give_back(cost(10, 1));
        assert_eq!(budget.left(), (Some(1000), Some(1)));
        budget.give_back(cost(10, 1));
        assert_eq!(budget.left(), (Some(1000), Some(1)), "no more than an hour is saved");
    }

    proptest! {
        /// Whatever is asked for at whatever time: a day's copies cost at most the day's budget, the savings of one hour and one copy; and a
        /// copy that had to wait is admitted after that time.
        #[test]
        fn no_day_costs_more_than_its_budget(
            per_day in 1u64..1 << 50,
            steps in proptest::collection::vec((0u64..7200, 0u64..1 << 45), 1..200),
        ) {
            let mut budget = Budget::new(Some(per_day), None);
            let (mut now, mut taken) = (Duration::ZERO, Vec::new());
            let largest = steps.iter().map(|(_, bytes)| *bytes).max().unwrap().min(per_day);
            for (wait_s, bytes) in steps {
                now += Duration::from_secs(wait_s);
                let bytes = bytes.min(per_day);
                if let Err(wait) = budget.take(now, cost(bytes, 0)) {
                    prop_assert!(wait > Duration::ZERO && wait <= DAY + Duration::from_micros(1));
                    now += wait;
                    prop_assert_eq!(budget.take(now, cost(bytes, 0)), Ok(()));
                }
                taken.push((now, bytes));
                let day: u64 = taken.iter().filter(|(at, _)| now - *at < DAY).map(|(_, bytes)| bytes).sum();
                prop_assert!(day <= per_day + per_day / 24 + largest + 1, "{day} of {per_day}");
            }
        }
    }
}

//! Entries older than the TTL. Stores samples of the clock of uses, one per period, so that an entry need not store the time of
//! its last use.

use serde::{Deserialize, Serialize};

/// Number of samples. They span one TTL, so an entry expires at most one period late.
const NOTES: usize = 16;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ages {
    /// 0: entries do not expire.
    ttl_us: u64,
    /// Samples of the clock, oldest first, as far as known.
    notes: [Option<u64>; NOTES],
    /// Time of the next sample, in microseconds.
    next_us: u64,
    /// A sample was taken since the last search that found nothing expired.
    look: bool,
}

impl Ages {
    pub fn new(ttl_us: u64) -> Ages {
        Ages { ttl_us, notes: [None; NOTES], next_us: if ttl_us == 0 { u64::MAX } else { 0 }, look: false }
    }

    fn period_us(&self) -> u64 {
        (self.ttl_us / (NOTES as u64 - 1)).max(1)
    }

    /// Return whether a sample is due. Take it before the clock advances; otherwise the next use counts as older than it is.
    pub fn is_due(&self, now_us: u64) -> bool {
        now_us >= self.next_us
    }

    /// Take all samples that are due; the clock did not advance between them. Return their number.
    pub fn note(&mut self, now_us: u64, clock: impl Fn(u64) -> u64) -> u64 {
        if self.next_us == 0 {
            self.next_us = now_us.saturating_add(self.period_us());
        }
        let mut taken = 0;
        while self.is_due(now_us) && taken < NOTES as u64 {
            self.push(clock(taken));
            self.next_us = self.next_us.saturating_add(self.period_us());
            taken += 1;
        }
        if self.is_due(now_us) {
            self.next_us = now_us.saturating_add(self.period_us());
        }
        taken
    }

    fn push(&mut self, clock: u64) {
        self.notes.rotate_left(1);
        self.notes[NOTES - 1] = Some(clock);
        self.look = true;
    }

    /// Change the TTL at time `now_us` and clock `clock`. The old samples give a lower bound of an entry's age. Entries without
    /// one count as used now. Return whether a sample was taken.
    pub fn configure(&mut self, ttl_us: u64, now_us: u64, clock: u64) -> bool {
        if ttl_us == self.ttl_us {
            return false;
        }
        let old = std::mem::replace(self, Ages::new(ttl_us));
        if ttl_us == 0 {
            return false;
        }
        // The last old sample was taken one period before the next one was due.
        let taken_us = |at: usize| old.next_us.saturating_sub(old.period_us().saturating_mul((NOTES - at) as u64));
        for at in 0..NOTES - 1 {
            let age_us = self.period_us().saturating_mul((NOTES - 1 - at) as u64);
            let before = |&i: &usize| taken_us(i).saturating_add(age_us) <= now_us;
            self.notes[at] = (0..NOTES).rev().find(before).and_then(|i| old.notes[i]);
        }
        self.notes[NOTES - 1] = Some(clock);
        (self.next_us, self.look) = (now_us.saturating_add(self.period_us()), true);
        true
    }

    /// Return the clock value at or before which a last use is too old.
    pub fn limit(&self) -> Option<u64> {
        self.notes[0].filter(|_| self.ttl_us != 0)
    }

    /// Record that no entry is expired now.
    pub fn looked(&mut self) {
        self.look = false;
    }

    /// Return when an entry may be expired, in microseconds; 0: now.
    pub fn due_us(&self) -> Option<u64> {
        (self.ttl_us != 0).then_some(if self.look { 0 } else { self.next_us })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compare with uses at known times. No entry expires before its time, and every entry expires at most one period after
        /// it. A change of the TTL changes only ages that are not known to be old.
        #[test]
        fn an_entry_goes_at_its_age_and_at_most_a_period_later(
            ops in prop::collection::vec((0u8..12, 0u64..400, prop::sample::select(vec![0u64, 15, 150, 3_000])), 1..300),
            timely in any::<bool>(),
        ) {
            let (mut ages, mut now_us, mut clock) = (Ages::new(150), 0, 0);
            // The clock and time of each use; the time when the TTL was set.
            let (mut uses, mut since) = (Vec::<(u64, u64)>::new(), 0);
            for (op, us, ttl_us) in ops {
                let until = now_us + us;
                while timely && ages.next_us < until {
                    now_us = now_us.max(ages.next_us);
                    clock += ages.note(now_us, |taken| clock + taken);
                }
                now_us = until;
                if ages.is_due(now_us) {
                    clock += ages.note(now_us, |taken| clock + taken);
                }
                match op {
                    0 => {
                        since = if ttl_us == ages.ttl_us { since } else { now_us };
                        clock += u64::from(ages.configure(ttl_us, now_us, clock));
                    }
                    _ => {
                        clock += 1;
                        uses.push((clock, now_us));
                    }
                }
                let late_us = ages.ttl_us + ages.period_us();
                for &(used, at_us) in &uses {
                    let old = ages.limit().is_some_and(|limit| used <= limit);
                    prop_assert!(!old || now_us - at_us >= ages.period_us() * (NOTES as u64 - 1), "{} at {}", at_us, now_us);
                    let lately = now_us - at_us.max(since);
                    prop_assert!(old || ages.ttl_us == 0 || lately <= late_us, "{} at {}: {:?}", at_us, now_us, ages);
                }
                prop_assert_eq!(ages.due_us().is_some(), ages.ttl_us > 0);
            }
        }
    }
}

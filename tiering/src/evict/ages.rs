//! What is too old to stay: where the clock of uses stood at times that are a period apart, so that a content need not know the time
//! of its last use.

use serde::{Deserialize, Serialize};

/// Times that are noted: from the first to the last it is a TTL, so that what goes for its age goes at most a period late.
const NOTES: usize = 16;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ages {
    /// 0: nothing goes for its age.
    ttl_us: u64,
    /// Where the clock stood, oldest first, as far as is known.
    notes: [Option<u64>; NOTES],
    /// When the next note is due.
    next_us: u64,
    /// Something was noted since nothing was found to be too old.
    look: bool,
}

impl Ages {
    pub fn new(ttl_us: u64) -> Ages {
        Ages { ttl_us, notes: [None; NOTES], next_us: if ttl_us == 0 { u64::MAX } else { 0 }, look: false }
    }

    fn period_us(&self) -> u64 {
        (self.ttl_us / (NOTES as u64 - 1)).max(1)
    }

    /// Whether a note is due: the clock must not go on before it is taken, or what is used next counts as older than it is.
    pub fn is_due(&self, now_us: u64) -> bool {
        now_us >= self.next_us
    }

    /// Takes the notes that are due: the clock stood there all the time. Returns how many they are.
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

    /// The TTL is another from now on, at which the clock stands there. What was noted says how old contents are at least; those of
    /// which it says nothing count as used now. Whether that is a note.
    pub fn configure(&mut self, ttl_us: u64, now_us: u64, clock: u64) -> bool {
        if ttl_us == self.ttl_us {
            return false;
        }
        let old = std::mem::replace(self, Ages::new(ttl_us));
        if ttl_us == 0 {
            return false;
        }
        // The last of the old notes was taken a period before the next one was due.
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

    /// What was used before the clock stood there is too old.
    pub fn limit(&self) -> Option<u64> {
        self.notes[0].filter(|_| self.ttl_us != 0)
    }

    /// Nothing is too old now.
    pub fn looked(&mut self) {
        self.look = false;
    }

    /// When something may be too old; 0: now.
    pub fn due_us(&self) -> Option<u64> {
        (self.ttl_us != 0).then_some(if self.look { 0 } else { self.next_us })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against uses whose times are known: nothing is too old before its time, everything a period after it, and a TTL that is
        /// changed changes no age but that of what is not known to be old.
        #[test]
        fn a_content_goes_at_its_age_and_at_most_a_period_later(
            ops in prop::collection::vec((0u8..12, 0u64..400, prop::sample::select(vec![0u64, 15, 150, 3_000])), 1..300),
            timely in any::<bool>(),
        ) {
            let (mut ages, mut now_us, mut clock) = (Ages::new(150), 0, 0);
            // Where the clock stood at each use, and when that was; when the TTL was set.
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

//! Time to reuse of entries by class, depth band and age, and the value of keeping one.
//!
//! Learned from a sample of entries that is followed longer than the cache keeps them: the time that entries spent at each age,
//! and how often one was reused at that age. The ratio is the *hazard*. The value of an entry is the highest rate of hits per
//! use-time that keeping it from now on could bring, over all possible retention times. This is Gittins' index, or the hit
//! density of LHD (Beckmann et al., NSDI 2018) without its sampling. A young entry can have a lower value than an older one if
//! entries are rarely reused at once.

use super::{BANDS, CLASSES, uses_of};
use serde::{Deserialize, Serialize};

/// Number of age ranges: two per octave.
const AGES: usize = 40;
/// Upper limit of the youngest age range, in uses.
const YOUNG: u64 = 128;
/// Number of combinations of class and band.
const KINDS: usize = CLASSES * BANDS;
/// Weight of the prior, in entries. A band starts from the values of its class, and a class from those of all classes, with this
/// weight; it matters while few entries were observed.
const PRIOR: f64 = 50.0;
/// Weight of an epoch relative to the next one. A change of habits shows after some tens of epochs.
const KEEP: f64 = 0.98;

fn age_of(uses: u64) -> usize {
    let n = uses / YOUNG;
    if n == 0 {
        return 0;
    }
    let octave = n.ilog2();
    let half = uses >> (octave + YOUNG.ilog2() - 1) & 1;
    (1 + 2 * octave as usize + half as usize).min(AGES - 1)
}

/// Return the number of uses at which an age range begins.
fn start_of(age: usize) -> f64 {
    if age == 0 {
        return 0.0;
    }
    let octave = (YOUNG << ((age - 1) / 2)) as f64;
    if (age - 1).is_multiple_of(2) { octave } else { octave * 1.5 }
}

/// Expected hits of entries, by class, band and age.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Values {
    of: Vec<f64>,
    /// The same by class and age only.
    of_class: Vec<f64>,
}

impl Values {
    /// Create initial values: more uses and lower age give a higher value.
    pub fn new() -> Values {
        let of = |class: usize, age| f64::from(uses_of(class as u8)) / (start_of(age) + YOUNG as f64);
        Values {
            of: (0..KINDS * AGES).map(|i| of(i / AGES / BANDS, i % AGES)).collect(),
            of_class: (0..CLASSES * AGES).map(|i| of(i / AGES, i % AGES)).collect(),
        }
    }

    /// Return the expected hits per use-time of an entry in `queue` that was last used `age` uses ago.
    pub fn get(&self, queue: usize, age: u64) -> f64 {
        self.of[queue * AGES + age_of(age)]
    }

    /// Return the same for a class, at any depth.
    pub fn of_class(&self, class: usize, age: u64) -> f64 {
        self.of_class[class * AGES + age_of(age)]
    }
}

/// Observations. All vectors are indexed by queue and age.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Reuse {
    /// Entries that were reused at that age.
    hits: Vec<f64>,
    /// Entries with an observation that ended at that age, and the time that they spent in it.
    ended: Vec<f64>,
    rest: Vec<f64>,
    /// Scratch: the same, including the entries that are still followed.
    scratch: [Vec<f64>; 2],
}

impl Reuse {
    pub fn new() -> Reuse {
        let zeros = || vec![0.0; KINDS * AGES];
        Reuse { hits: zeros(), ended: zeros(), rest: zeros(), scratch: [zeros(), zeros()] }
    }

    /// Record that an entry of a queue was followed until `age` uses after its last use. `again`: it was then reused; otherwise
    /// it left the sample.
    pub fn saw(&mut self, queue: u8, age: u64, again: bool) {
        let a = age_of(age);
        let i = usize::from(queue) * AGES + a;
        self.hits[i] += f64::from(u8::from(again));
        self.ended[i] += 1.0;
        self.rest[i] += age as f64 - start_of(a);
    }

    /// Update `values` from the observations and from the entries that are still followed (queue, uses since their last use).
    /// Keeping an entry beyond `horizon` uses counts for nothing.
    pub fn learn(&mut self, followed: impl Iterator<Item = (u8, u64)>, horizon: f64, values: &mut Values) {
        let [mut ended, mut rest] = std::mem::take(&mut self.scratch);
        ended.copy_from_slice(&self.ended);
        rest.copy_from_slice(&self.rest);
        for (queue, age) in followed {
            let a = age_of(age);
            ended[usize::from(queue) * AGES + a] += 1.0;
            rest[usize::from(queue) * AGES + a] += age as f64 - start_of(a);
        }
        // Compute the time that entries of each queue spent at each age. Hazards then follow over a class, and over all classes.
        for queue in 0..KINDS {
            let mut older = 0.0;
            for a in (0..AGES).rev() {
                let i = queue * AGES + a;
                rest[i] += if a + 1 < AGES { older * (start_of(a + 1) - start_of(a)) } else { 0.0 };
                older += ended[i];
            }
        }
        let seen = Seen { hits: &self.hits, rest: &rest };
        // Ages that no entry was followed to have a hazard of zero.
        let all = seen.hazards(0..KINDS, &[0.0; AGES]);
        for class in 0..CLASSES {
            let queues = class * BANDS..(class + 1) * BANDS;
            let of_class = seen.hazards(queues.clone(), &all);
            for a in 0..AGES {
                values.of_class[class * AGES + a] = best_density(&of_class, a, horizon);
            }
            for queue in queues {
                let hazards = seen.hazards(queue..queue + 1, &of_class);
                for a in 0..AGES {
                    values.of[queue * AGES + a] = best_density(&hazards, a, horizon);
                }
            }
        }
        for of in [&mut self.hits, &mut self.ended, &mut self.rest] {
            of.iter_mut().for_each(|n| *n *= KEEP);
        }
        self.scratch = [ended, rest];
    }

    pub fn bytes(&self) -> usize {
        size_of::<Reuse>() + 6 * KINDS * AGES * size_of::<f64>()
    }
}

/// Reuses, and the time that entries spent at each age.
struct Seen<'a> {
    hits: &'a [f64],
    rest: &'a [f64],
}

impl Seen<'_> {
    /// Return the hazards of some queues together, by age. `prior` fills in where few observations exist.
    fn hazards(&self, queues: std::ops::Range<usize>, prior: &[f64; AGES]) -> [f64; AGES] {
        let mut hazards = [0.0; AGES];
        for (a, hazard) in hazards.iter_mut().enumerate() {
            let sum = |of: &[f64]| queues.clone().map(|queue| of[queue * AGES + a]).sum::<f64>();
            let little = PRIOR * (start_of(a + 1) - start_of(a));
            *hazard = (sum(self.hits) + prior[a] * little) / (sum(self.rest) + little);
        }
        hazards
    }
}

/// Return the highest rate of hits per use-time from keeping an entry of age `from`, over all retention times.
fn best_density(hazards: &[f64; AGES], from: usize, horizon: f64) -> f64 {
    let (mut left, mut hits, mut time, mut best) = (1.0, 0.0, 0.0, 0.0f64);
    for (a, hazard) in hazards.iter().enumerate().take(AGES - 1).skip(from) {
        if start_of(a) - start_of(from) > horizon {
            break;
        }
        let width = start_of(a + 1) - start_of(a);
        // Probability of reuse within the age range at a constant hazard: 1 − exp(−x), approximated by x / (1 + x), which gives
        // the same result on every machine.
        let x = hazard * width;
        let used = x / (1.0 + x);
        hits += left * used;
        time += left * width * (1.0 - used / 2.0);
        left *= 1.0 - used;
        best = best.max(hits / time);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::super::queue_of;
    use super::*;

    #[test]
    fn ages_begin_where_they_begin() {
        for age in 0..AGES {
            assert_eq!(age_of(start_of(age) as u64), age);
            assert!(age == 0 || age_of(start_of(age) as u64 - 1) == age - 1);
        }
        assert_eq!(age_of(u64::MAX), AGES - 1);
    }

    /// Entries of class 0 are never reused. Half of class 2 are reused at age 1,000, and none later.
    #[test]
    fn learns_who_comes_back_and_when() {
        let (mut reuse, mut values) = (Reuse::new(), Values::new());
        for i in 0..2_000 {
            reuse.saw(queue_of(0, 0), 20_000, false);
            if i % 2 == 0 { reuse.saw(queue_of(2, 0), 1_000, true) } else { reuse.saw(queue_of(2, 0), 20_000, false) }
        }
        reuse.learn(std::iter::empty(), f64::MAX, &mut values);
        let worth = |class, age| values.get(usize::from(queue_of(class, 0)), age);
        assert!(worth(2, 0) > 10.0 * worth(0, 0), "{} {}", worth(2, 0), worth(0, 0));
        assert!(worth(2, 900) > 2.0 * worth(2, 0), "an entry due for reuse has a higher value than one just used");
        assert!(worth(2, 2_000) < worth(2, 0) / 10.0, "an entry past its reuse age has a low value");
        let before = values.get(usize::from(queue_of(2, 0)), 0);
        reuse.learn(std::iter::empty(), 100.0, &mut values);
        assert!(values.get(usize::from(queue_of(2, 0)), 0) < before / 10.0, "reuse beyond the horizon adds no value");
    }

    /// Entries that are still followed without reuse count too.
    #[test]
    fn the_patient_count() {
        let (mut reuse, mut values) = (Reuse::new(), Values::new());
        (0..100).for_each(|_| reuse.saw(queue_of(0, 0), 500, true));
        reuse.learn(std::iter::empty(), f64::MAX, &mut values);
        let before = values.get(0, 400);
        reuse.learn((0..10_000).map(|_| (0, 5_000)), f64::MAX, &mut values);
        assert!(values.get(0, 400) < before / 20.0);
    }
}

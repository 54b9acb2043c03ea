//! How soon contents are used again, by class, band of depth and age, and what keeping one is worth.
//!
//! From a sample of contents that is followed for longer than the cache keeps them: for each of them how long contents were
//! that old, and how often one was used meanwhile. Their ratio is the *hazard*. A content is worth the most hits per use-time that
//! keeping it from now on could bring, over all times for which it could be kept (Gittins' index; the hit density of LHD, Beckmann et
//! al., NSDI 2018, without its sampling): a young content may well be worth less than an older one, if nobody comes back at once.

use super::{BANDS, CLASSES, uses_of};
use serde::{Deserialize, Serialize};

/// Ages that are told apart: two an octave.
const AGES: usize = 40;
/// Uses up to which an age is the youngest.
const YOUNG: u64 = 128;
/// Classes, each with its bands.
const KINDS: usize = CLASSES * BANDS;
/// What is seen of a band counts as much as this many contents of its class, and a class as much as this many of whatever class, as
/// long as it is little.
const PRIOR: f64 = 50.0;
/// What an earlier epoch counts of a later one: a change of habits shows after some tens of them.
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

/// Uses at which an age begins.
fn start_of(age: usize) -> f64 {
    if age == 0 {
        return 0.0;
    }
    let octave = (YOUNG << ((age - 1) / 2)) as f64;
    if (age - 1).is_multiple_of(2) { octave } else { octave * 1.5 }
}

/// Hits to expect of contents, by class, band and age.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Values {
    of: Vec<f64>,
    /// The same, by class and age alone.
    of_class: Vec<f64>,
}

impl Values {
    /// Before anything is known: what was used more often, and what is younger.
    pub fn new() -> Values {
        let of = |class: usize, age| f64::from(uses_of(class as u8)) / (start_of(age) + YOUNG as f64);
        Values {
            of: (0..KINDS * AGES).map(|i| of(i / AGES / BANDS, i % AGES)).collect(),
            of_class: (0..CLASSES * AGES).map(|i| of(i / AGES, i % AGES)).collect(),
        }
    }

    /// Hits per use-time to expect of a content of a queue that was used last so many uses ago.
    pub fn get(&self, queue: usize, age: u64) -> f64 {
        self.of[queue * AGES + age_of(age)]
    }

    /// The same of a class, whatever the depth.
    pub fn of_class(&self, class: usize, age: u64) -> f64 {
        self.of_class[class * AGES + age_of(age)]
    }
}

/// What is learnt. All vectors are by queue and age.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Reuse {
    /// Contents that were used again at that age.
    hits: Vec<f64>,
    /// Contents that were followed up to that age, and how long they were that old.
    ended: Vec<f64>,
    rest: Vec<f64>,
    /// Scratch: the same, with those that are followed now.
    scratch: [Vec<f64>; 2],
}

impl Reuse {
    pub fn new() -> Reuse {
        let zeros = || vec![0.0; KINDS * AGES];
        Reuse { hits: zeros(), ended: zeros(), rest: zeros(), scratch: [zeros(), zeros()] }
    }

    /// A content of a queue was followed until so many uses after its last, and then used again or lost from sight.
    pub fn saw(&mut self, queue: u8, age: u64, again: bool) {
        let a = age_of(age);
        let i = usize::from(queue) * AGES + a;
        self.hits[i] += f64::from(u8::from(again));
        self.ended[i] += 1.0;
        self.rest[i] += age as f64 - start_of(a);
    }

    /// Learns from what was seen, and from those that are followed now: queue, and uses since their last. Nothing is expected from
    /// keeping a content beyond `horizon` uses.
    pub fn learn(&mut self, followed: impl Iterator<Item = (u8, u64)>, horizon: f64, values: &mut Values) {
        let [mut ended, mut rest] = std::mem::take(&mut self.scratch);
        ended.copy_from_slice(&self.ended);
        rest.copy_from_slice(&self.rest);
        for (queue, age) in followed {
            let a = age_of(age);
            ended[usize::from(queue) * AGES + a] += 1.0;
            rest[usize::from(queue) * AGES + a] += age as f64 - start_of(a);
        }
        // How long contents of each queue were each age; then over all of a class, and over all classes.
        for queue in 0..KINDS {
            let mut older = 0.0;
            for a in (0..AGES).rev() {
                let i = queue * AGES + a;
                rest[i] += if a + 1 < AGES { older * (start_of(a + 1) - start_of(a)) } else { 0.0 };
                older += ended[i];
            }
        }
        let seen = Seen { hits: &self.hits, rest: &rest };
        // What nobody has been followed to is not hoped for.
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

/// Uses again, and how long contents were each age.
struct Seen<'a> {
    hits: &'a [f64],
    rest: &'a [f64],
}

impl Seen<'_> {
    /// Hazards by age of some queues together, and of `prior` as far as little is seen of them.
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

/// Most hits per use-time that keeping a content of age `from` could bring, whatever it is kept until.
fn best_density(hazards: &[f64; AGES], from: usize, horizon: f64) -> f64 {
    let (mut left, mut hits, mut time, mut best) = (1.0, 0.0, 0.0, 0.0f64);
    for (a, hazard) in hazards.iter().enumerate().take(AGES - 1).skip(from) {
        if start_of(a) - start_of(from) > horizon {
            break;
        }
        let width = start_of(a + 1) - start_of(a);
        // Used within the age, the hazard being even: 1 − exp(−x), by its rational bound, which every machine computes alike.
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

    /// Of class 0 nobody comes back, of class 2 half do, at an age of 1,000 and never later.
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
        assert!(
            worth(2, 900) > 2.0 * worth(2, 0),
            "one that is about to be used is worth more than one that was just used"
        );
        assert!(worth(2, 2_000) < worth(2, 0) / 10.0, "and none that nobody came back for");
        let before = values.get(usize::from(queue_of(2, 0)), 0);
        reuse.learn(std::iter::empty(), 100.0, &mut values);
        assert!(
            values.get(usize::from(queue_of(2, 0)), 0) < before / 10.0,
            "who does not live to see it is worth nothing"
        );
    }

    /// Those that are still followed and did not come back count too.
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

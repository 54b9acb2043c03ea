//! Baselines with the same number of pages in tier 0: the oracle, the best pages of the last step, and the best pages by the true
//! query's digests.

use super::super::trace::Attention;
use super::estimates::Estimates;

/// Return the pages of a plane that fit in tier 0 at a step, including the tail.
pub(super) fn room(trace: &Attention, step: usize, capacity_percent: f64) -> usize {
    let pages = trace.pages_at(step);
    ((pages as f64 * capacity_percent / 100.0).round() as usize).clamp(1, pages)
}

/// Set `chosen` to the positions of the `count` largest numbers, ascending; of equal numbers the earlier ones.
pub(super) fn top(numbers: &[f32], count: usize, chosen: &mut Vec<u32>) {
    chosen.clear();
    chosen.extend(0..numbers.len() as u32);
    let by_size = |a: &u32, b: &u32| numbers[*b as usize].total_cmp(&numbers[*a as usize]).then(a.cmp(b));
    if count < chosen.len() {
        chosen.select_nth_unstable_by(count, by_size);
        chosen.truncate(count);
    }
    chosen.sort_unstable();
}

/// The oracle's pages at every step and plane.
pub(super) struct Oracle {
    planes: usize,
    sets: Vec<Vec<u32>>,
}

impl Oracle {
    pub(super) fn new(trace: &Attention, capacity_percent: f64) -> Oracle {
        let (mut mass, mut sets) = (Vec::new(), Vec::with_capacity(trace.steps * trace.planes));
        for step in 0..trace.steps {
            for plane in 0..trace.planes {
                trace.mass(step, plane, &mut mass);
                let mut set = Vec::new();
                top(&mass, room(trace, step, capacity_percent), &mut set);
                sets.push(set);
            }
        }
        Oracle { planes: trace.planes, sets }
    }

    /// Return the pages with the most attention at a step, ascending.
    pub(super) fn at(&self, step: usize, plane: usize) -> &[u32] {
        &self.sets[step * self.planes + plane]
    }

    /// Return true if a page is one of them; false after the last step.
    pub(super) fn has(&self, step: usize, plane: usize, page: u32) -> bool {
        self.sets.get(step * self.planes + plane).is_some_and(|set| set.binary_search(&page).is_ok())
    }

    /// Return the maximum number of pages that the oracle loads for one plane of one step.
    pub(super) fn moves(&self) -> usize {
        let new = |at: usize| {
            let (step, plane) = (at / self.planes, at % self.planes);
            self.sets[at].iter().filter(|page| !self.has(step - 1, plane, **page)).count()
        };
        (self.planes..self.sets.len()).map(new).max().unwrap_or(0)
    }
}

/// Shares of attention in tier 0 by plane, averaged over all steps except the first.
pub(super) struct Baselines {
    pub(super) oracle: Vec<f64>,
    pub(super) last_step: Vec<f64>,
    pub(super) true_query: Vec<f64>,
}

impl Baselines {
    pub(super) fn new(trace: &Attention, oracle: &Oracle, estimates: &Estimates, capacity_percent: f64) -> Baselines {
        let zeros = || vec![0.0; trace.planes];
        let mut sums = Baselines { oracle: zeros(), last_step: zeros(), true_query: zeros() };
        let (mut mass, mut before, mut chosen) = (Vec::new(), Vec::new(), Vec::new());
        let steps = trace.steps.saturating_sub(1).max(1) as f64;
        for step in 1..trace.steps {
            let tail = trace.pages_at(step) - 1;
            let room = room(trace, step, capacity_percent);
            for plane in 0..trace.planes {
                trace.mass(step, plane, &mut mass);
                let of = |pages: &[u32]| pages.iter().map(|page| f64::from(mass[*page as usize])).sum::<f64>() / steps;
                sums.oracle[plane] += of(oracle.at(step, plane));
                // The tail is always in tier 0; the baselines choose the other pages.
                trace.mass(step - 1, plane, &mut before);
                before.truncate(tail);
                top(&before, room - 1, &mut chosen);
                chosen.push(tail as u32);
                sums.last_step[plane] += of(&chosen);
                top(&estimates.at(step, plane, false, trace.pages_at(step))[..tail], room - 1, &mut chosen);
                chosen.push(tail as u32);
                sums.true_query[plane] += of(&chosen);
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_chosen_and_of_equals_the_earlier() {
        let mut chosen = vec![9];
        top(&[0.1, 0.4, 0.4, 0.0, 0.4], 2, &mut chosen);
        assert_eq!(chosen, [1, 2]);
        top(&[0.1], 5, &mut chosen);
        assert_eq!(chosen, [0]);
        top(&[], 1, &mut chosen);
        assert!(chosen.is_empty());
    }
}

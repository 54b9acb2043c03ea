//! Age of the items in a queue. A few marks point at items that were added at a known time; marks are closer together where the
//! queue is young. An item needs no timestamp, and its age is known to within a fraction of itself.

use crate::api::NONE;
use serde::{Deserialize, Serialize};

/// Maximum marks per queue.
const MARKS: usize = 32;
/// Minimum distance between marks, in uses.
pub(super) const GAP: u64 = 32;

/// The marks of one queue, oldest first. Each points at the first item added at its time or later, and before the time of the
/// next mark. The first mark is at the head of the queue.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct AgeMarks {
    at: [u32; MARKS],
    since: [u64; MARKS],
    /// Time at which the last of its items was added.
    until: [u64; MARKS],
    len: u8,
}

impl AgeMarks {
    /// Record that an item was added at the end of the queue at `since`. `since` is never before that of an earlier item, and not
    /// after `now`.
    pub fn pushed(&mut self, at: u32, since: u64, now: u64) {
        let len = usize::from(self.len);
        if len > 0 && since < self.since[len - 1] + GAP {
            self.until[len - 1] = self.until[len - 1].max(since);
            return;
        }
        self.add(len, at, since, now);
    }

    /// Record that an item was added before `next`, the item after it, behind mark `i`, or before all marks (`None`). It was added
    /// before the time of the next mark, and not after `now`.
    pub fn inserted(&mut self, i: Option<usize>, at: u32, next: u32, since: u64, now: u64) {
        let after = i.map_or(0, |i| i + 1);
        let is_last = after == usize::from(self.len) || self.at[after] == next;
        match i {
            Some(i) if self.at[i] == next => self.at[i] = at,
            Some(i) if !is_last || since < self.since[i] + GAP => self.until[i] = self.until[i].max(since),
            None if since + GAP > self.since[0] => (self.at[0], self.since[0]) = (at, since),
            _ => self.add(after, at, since, now),
        }
    }

    /// Add a mark as the `i`th.
    fn add(&mut self, mut i: usize, at: u32, since: u64, now: u64) {
        if usize::from(self.len) == MARKS {
            i -= usize::from(self.thin(now) < i);
        }
        let until = if i == 0 { since } else { since.max(self.until[i - 1]) };
        self.at.copy_within(i..MARKS - 1, i + 1);
        self.since.copy_within(i..MARKS - 1, i + 1);
        self.until.copy_within(i..MARKS - 1, i + 1);
        (self.at[i], self.since[i], self.until[i]) = (at, since, until);
        self.len += 1;
    }

    /// Drop the mark with the least information: the one with the smallest gap between its neighbours relative to its age.
    /// Return its number.
    fn thin(&mut self, now: u64) -> usize {
        let mut least = (1, 0, 1);
        for i in 1..MARKS - 1 {
            let gap = self.since[i + 1] - self.since[i - 1];
            let age = now.saturating_sub(self.since[i]) + GAP;
            // gap / age < least gap / least age, in exact integer arithmetic.
            let less = u128::from(gap) * u128::from(least.2) < u128::from(least.1) * u128::from(age);
            if i == 1 || less {
                least = (i, gap, age);
            }
        }
        self.until[least.0 - 1] = self.until[least.0];
        self.drop(least.0);
        least.0
    }

    fn drop(&mut self, i: usize) {
        let len = usize::from(self.len);
        self.at.copy_within(i + 1..len, i);
        self.since.copy_within(i + 1..len, i);
        self.until.copy_within(i + 1..len, i);
        self.len -= 1;
    }

    /// Record that an item was removed. `next`: the item after it.
    pub fn removed(&mut self, at: u32, next: u32) {
        let len = usize::from(self.len);
        let Some(i) = self.at[..len].iter().position(|&mark| mark == at) else { return };
        let after = if i + 1 < len { self.at[i + 1] } else { NONE };
        match next == after {
            true => self.drop(i),
            false => self.at[i] = next,
        }
    }

    /// Return the time of the newest mark; 0 if there is none.
    pub fn newest(&self) -> u64 {
        self.get().last().map_or(0, |m| m.1)
    }

    /// Return the marks, oldest first: item and time.
    pub fn get(&self) -> impl DoubleEndedIterator<Item = (u32, u64)> + '_ {
        (0..usize::from(self.len)).map(|i| (self.at[i], self.since[i]))
    }

    /// Return the item at the head, and the latest time at which it can have been added.
    pub fn head(&self) -> Option<(u32, u64)> {
        (self.len > 0).then_some((self.at[0], self.until[0]))
    }

    /// Return the last mark that is not after a time, and its item.
    pub fn last_until(&self, since: u64) -> Option<(usize, u32)> {
        let after = self.get().position(|m| m.1 > since).unwrap_or(self.len.into());
        after.checked_sub(1).map(|i| (i, self.at[i]))
    }

    /// Return the item of the mark with this time, if it still exists.
    pub fn of(&self, since: u64) -> Option<u32> {
        self.get().find(|m| m.1 == since).map(|m| m.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// Compare with a queue that stores every item's time. The first mark is at the head, marks are in order, and no item was
        /// added before the time of its mark.
        #[test]
        fn ages_are_known_to_a_part(ops in prop::collection::vec((0u8..6, 0u64..5_000), 1..600)) {
            let (mut marks, mut model) = (AgeMarks::default(), VecDeque::<(u32, u64)>::new());
            let (mut now, mut next) = (0, 0);
            for (op, n) in ops {
                if op < 3 {
                    now += n;
                    model.push_back((next, now));
                    marks.pushed(next, now, now);
                    next += 1;
                } else if op > 4 && model.len() > 1 {
                    // Among the others, at the time of one of them, or before all.
                    let i = n as usize % (model.len() - 1);
                    let came = model[i].1 - if i == 0 { n.min(model[0].1) } else { 0 };
                    let (mark, at) = match marks.last_until(came) {
                        None => (None, 0),
                        Some((mark, first)) => {
                            let first = model.iter().position(|m| m.0 == first).unwrap();
                            (Some(mark), if model[first].1 > came { first } else { i.max(first) + 1 })
                        }
                    };
                    marks.inserted(mark, next, model.get(at).map_or(NONE, |m| m.0), came, now);
                    model.insert(at, (next, came));
                    next += 1;
                } else if !model.is_empty() {
                    let i = n as usize % model.len();
                    let (at, _) = model.remove(i).unwrap();
                    marks.removed(at, model.get(i).map_or(NONE, |m| m.0));
                }
                prop_assert_eq!(marks.get().next().map(|m| m.0), model.front().map(|m| m.0));
                prop_assert!(marks.head().is_none_or(|(_, until)| until >= model[0].1));
                let mut all = marks.get().peekable();
                let mut since = 0;
                for &(at, came) in &model {
                    if let Some(mark) = all.next_if(|m| m.0 == at) {
                        prop_assert!(mark.1 >= since && mark.1 <= came);
                        since = mark.1;
                    }
                    prop_assert!(since <= came, "an item was added before the time of its mark");
                }
                prop_assert!(all.next().is_none(), "a mark at a missing item, or out of order");
            }
        }
    }

    #[test]
    fn old_marks_stand_further_apart() {
        let mut marks = AgeMarks::default();
        (0..1 << 20).for_each(|now| marks.pushed(now as u32, now, now));
        let all: Vec<u64> = marks.get().map(|m| (1 << 20) - m.1).collect();
        assert_eq!(all.len(), MARKS);
        for pair in all.windows(2) {
            assert!(pair[0] - pair[1] <= pair[0] * 2 / 3 + GAP, "no mark between ages {} and {}", pair[0], pair[1]);
        }
    }
}

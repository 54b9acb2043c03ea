//! Deadlines of pending requests: a binary heap with entries that record their position, so that any entry can be removed.

use serde::{Deserialize, Serialize};

/// (deadline in microseconds, session, index of the op).
pub(crate) type Deadline = (u64, u16, u32);

/// A bounded min-heap. The `moved` callback reports the new index of an entry to its owner.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Deadlines {
    heap: Vec<Deadline>,
}

impl Deadlines {
    pub fn reserve(&mut self, more: usize) {
        self.heap.reserve(more);
    }

    pub fn first(&self) -> Option<Deadline> {
        self.heap.first().copied()
    }

    pub fn push(&mut self, entry: Deadline, mut moved: impl FnMut(Deadline, u32)) {
        self.heap.push(entry);
        self.up(self.heap.len() - 1, &mut moved);
    }

    /// Remove the entry at `at`.
    pub fn remove(&mut self, at: u32, mut moved: impl FnMut(Deadline, u32)) {
        let at = at as usize;
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            let at = self.up(at, &mut moved);
            self.down(at, &mut moved);
        }
    }

    fn up(&mut self, mut at: usize, moved: &mut impl FnMut(Deadline, u32)) -> usize {
        while at > 0 && self.heap[at] < self.heap[(at - 1) / 2] {
            self.heap.swap(at, (at - 1) / 2);
            moved(self.heap[at], at as u32);
            at = (at - 1) / 2;
        }
        moved(self.heap[at], at as u32);
        at
    }

    fn down(&mut self, mut at: usize, moved: &mut impl FnMut(Deadline, u32)) {
        loop {
            let mut least = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len() && self.heap[child] < self.heap[least] {
                    least = child;
                }
            }
            if least == at {
                break;
            }
            self.heap.swap(at, least);
            moved(self.heap[at], at as u32);
            at = least;
        }
        moved(self.heap[at], at as u32);
    }

    pub fn bytes(&self) -> usize {
        self.heap.capacity() * size_of::<Deadline>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_like_a_sorted_map(ops in prop::collection::vec((any::<bool>(), 0u64..50, 0u32..40), 1..300)) {
            let mut heap = Deadlines::default();
            let mut at: BTreeMap<u32, u32> = BTreeMap::new();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (add, due, op) in ops {
                if add && !model.contains_key(&op) {
                    model.insert(op, due);
                    heap.push((due, 0, op), |e, i| { at.insert(e.2, i); });
                } else if !add && model.remove(&op).is_some() {
                    heap.remove(at[&op], |e, i| { at.insert(e.2, i); });
                }
                prop_assert_eq!(heap.first().map(|e| e.0), model.values().min().copied());
                for &op in model.keys() {
                    prop_assert_eq!(heap.heap[at[&op] as usize].2, op);
                }
            }
        }
    }
}

//! Use counts of entries in bounded memory, also of entries that are no longer cached, so that a returning entry is recognized.
//!
//! A set-associative table: a hash belongs to one set, the most recently used entry is first, and the last one is dropped. An
//! entry keeps 13 bits of the hash and takes two bytes. One of 512 new entries is mistaken for one that was used before, which
//! costs at most one unnecessary write.

use super::mix;
use serde::{Deserialize, Serialize};

/// Entries per set: half a cache line.
const WAYS: usize = 16;
/// Bits of an entry that hold the count.
const COUNT_BITS: u32 = 3;
/// Largest count; further uses are not counted.
const COUNT_MAX: u8 = (1 << COUNT_BITS) - 1;

/// Use counts by hash.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FrequencySketch {
    /// Tag and count; 0: empty. Sets are stored one after the other.
    entries: Vec<u16>,
}

impl FrequencySketch {
    /// Create a table for about `entries` entries; 0 allocates no memory.
    pub fn new(entries: u32) -> FrequencySketch {
        FrequencySketch { entries: vec![0; (entries as usize).next_multiple_of(WAYS)] }
    }

    /// Count a use. Return how many uses came before it, as far as remembered.
    pub fn touch(&mut self, hash: u128) -> u8 {
        if self.entries.is_empty() {
            return 0;
        }
        let (set, tag) = self.place(hash);
        let set = &mut self.entries[set..set + WAYS];
        let at = set.iter().position(|&e| e >> COUNT_BITS == tag);
        let before = at.map_or(0, |at| (set[at] as u8) & COUNT_MAX);
        set.copy_within(..at.unwrap_or(WAYS - 1), 1);
        set[0] = tag << COUNT_BITS | u16::from((before + 1).min(COUNT_MAX));
        before
    }

    /// Return the remembered number of uses.
    pub fn of(&self, hash: u128) -> u8 {
        if self.entries.is_empty() {
            return 0;
        }
        let (set, tag) = self.place(hash);
        let found = self.entries[set..set + WAYS].iter().find(|&&e| e >> COUNT_BITS == tag);
        found.map_or(0, |&e| (e as u8) & COUNT_MAX)
    }

    /// Return the bytes of the table.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<u16>()
    }

    /// Return the first index of a hash's set, and its tag, which is never 0.
    fn place(&self, hash: u128) -> (usize, u16) {
        let mixed = mix(hash);
        let sets = (self.entries.len() / WAYS) as u64;
        let set = ((mixed >> 32) * sets) >> 32;
        let tag = mixed as u16 >> COUNT_BITS;
        (set as usize * WAYS, tag.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// While no set overflows, no count is lost.
        #[test]
        fn counts_like_a_map_while_there_is_room(uses in prop::collection::vec(0u128..WAYS as u128, 1..200)) {
            let mut sketch = FrequencySketch::new(1 << 12);
            let mut model: BTreeMap<u128, u8> = BTreeMap::new();
            for hash in uses {
                let hash = hash << 64 | hash;
                let count = model.entry(hash).or_default();
                prop_assert_eq!(sketch.of(hash), *count);
                prop_assert_eq!(sketch.touch(hash), *count);
                *count = (*count + 1).min(COUNT_MAX);
            }
        }
    }

    #[test]
    fn the_least_recently_used_of_a_set_is_forgotten() {
        let mut sketch = FrequencySketch::new(1);
        for hash in 1..=16 {
            assert_eq!(sketch.touch(hash), 0);
        }
        assert_eq!(sketch.touch(1), 1, "used again, now first in its set");
        assert_eq!(sketch.touch(17), 0);
        assert_eq!(sketch.of(2), 0, "the oldest was dropped");
        assert_eq!((sketch.of(1), sketch.of(3), sketch.of(17)), (2, 1, 1));
    }

    #[test]
    fn remembers_about_as_many_as_it_was_made_for() {
        let mut sketch = FrequencySketch::new(1 << 14);
        assert_eq!(sketch.bytes(), 2 << 14);
        let hash = |i: u128| i << 96 | i << 40 | (i ^ 0x55) << 7;
        (0..1 << 13).for_each(|i| _ = sketch.touch(hash(i)));
        let known = (0..1 << 13).filter(|&i| sketch.of(hash(i)) == 1).count();
        assert!(known > (1 << 13) * 95 / 100, "half full: {known} of 8,192 remembered");
    }

    #[test]
    fn without_memory_everything_is_new() {
        let mut sketch = FrequencySketch::new(0);
        assert_eq!((sketch.touch(1), sketch.touch(1), sketch.of(1), sketch.bytes()), (0, 0, 0, 0));
    }
}

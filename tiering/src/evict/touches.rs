//! How often contents were used before, in bounded memory: also of those that are not kept any more, so that what comes back is
//! known to come back.
//!
//! A table of short sets: a hash belongs to one set, the most recently used stands first, the last one falls out. An entry keeps
//! 13 bits of the hash only, so that it takes two bytes; of 512 new contents one is taken for another that was used before, which
//! costs a write at worst.

use serde::{Deserialize, Serialize};

/// Entries of a set: half a cache line.
const WAYS: usize = 16;
/// Bits of an entry that count.
const COUNT_BITS: u32 = 3;
/// Beyond this no use is told from the next.
const TOUCHES_MAX: u8 = (1 << COUNT_BITS) - 1;

/// Uses by content.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Touches {
    /// Tag and count; 0: nothing. Sets one after the other.
    entries: Vec<u16>,
}

impl Touches {
    /// Memory for about `contents` contents; none at all for 0.
    pub fn new(contents: u32) -> Touches {
        Touches { entries: vec![0; (contents as usize).next_multiple_of(WAYS)] }
    }

    /// Counts a use; returns how many came before it, as far as is remembered.
    pub fn touch(&mut self, hash: u128) -> u8 {
        if self.entries.is_empty() {
            return 0;
        }
        let (set, tag) = self.place(hash);
        let set = &mut self.entries[set..set + WAYS];
        let at = set.iter().position(|&e| e >> COUNT_BITS == tag);
        let before = at.map_or(0, |at| (set[at] as u8) & TOUCHES_MAX);
        set.copy_within(..at.unwrap_or(WAYS - 1), 1);
        set[0] = tag << COUNT_BITS | u16::from((before + 1).min(TOUCHES_MAX));
        before
    }

    /// Uses that are remembered.
    pub fn of(&self, hash: u128) -> u8 {
        if self.entries.is_empty() {
            return 0;
        }
        let (set, tag) = self.place(hash);
        let found = self.entries[set..set + WAYS].iter().find(|&&e| e >> COUNT_BITS == tag);
        found.map_or(0, |&e| (e as u8) & TOUCHES_MAX)
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<u16>()
    }

    /// Where a hash's set begins and what stands for it there, which is never 0. Hashes come from engines, which may make them
    /// of anything: all bits count.
    fn place(&self, hash: u128) -> (usize, u16) {
        let folded = (hash as u64).wrapping_mul(0x9e37_79b1_85eb_ca87)
            ^ ((hash >> 64) as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        let mixed = (folded ^ folded >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
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
        /// While a set does not overflow nothing is forgotten.
        #[test]
        fn counts_like_a_map_while_there_is_room(uses in prop::collection::vec(0u128..WAYS as u128, 1..200)) {
            let mut touches = Touches::new(1 << 12);
            let mut model: BTreeMap<u128, u8> = BTreeMap::new();
            for hash in uses {
                let hash = hash << 64 | hash;
                let count = model.entry(hash).or_default();
                prop_assert_eq!(touches.of(hash), *count);
                prop_assert_eq!(touches.touch(hash), *count);
                *count = (*count + 1).min(TOUCHES_MAX);
            }
        }
    }

    #[test]
    fn the_least_recently_used_of_a_set_is_forgotten() {
        let mut touches = Touches::new(1);
        for hash in 1..=16 {
            assert_eq!(touches.touch(hash), 0);
        }
        assert_eq!(touches.touch(1), 1, "used again, it stands first");
        assert_eq!(touches.touch(17), 0);
        assert_eq!(touches.of(2), 0, "the oldest fell out");
        assert_eq!((touches.of(1), touches.of(3), touches.of(17)), (2, 1, 1));
    }

    #[test]
    fn remembers_about_as_many_as_it_was_made_for() {
        let mut touches = Touches::new(1 << 14);
        assert_eq!(touches.bytes(), 2 << 14);
        let hash = |i: u128| i << 96 | i << 40 | (i ^ 0x55) << 7;
        (0..1 << 13).for_each(|i| _ = touches.touch(hash(i)));
        let known = (0..1 << 13).filter(|&i| touches.of(hash(i)) == 1).count();
        assert!(known > (1 << 13) * 95 / 100, "half full, {known} of 8,192 are known");
    }

    #[test]
    fn without_memory_everything_is_new() {
        let mut touches = Touches::new(0);
        assert_eq!((touches.touch(1), touches.touch(1), touches.of(1), touches.bytes()), (0, 0, 0, 0));
    }
}

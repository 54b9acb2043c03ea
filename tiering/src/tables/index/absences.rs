//! History of the blocks that are not cached: why each of them left, or never came. It has room for a fixed number of blocks. A block that
//! finds its set full replaces the one of the set that is known for the longest time.

use kvtide_types::{Cause, Tier};
use serde::{Deserialize, Serialize};

/// Minimum and maximum records of a space's history: 96 KiB, 1.5 MiB.
const RECORDS: (usize, usize) = (1 << 12, 1 << 16);
/// Records of a set: three cache lines.
const WAYS: usize = 8;
/// Bits of a record's last word below its time.
const CODE_BITS: u32 = 16;
const TIER: u32 = 8;
const WITH_ANCESTOR: u64 = 1 << 12;

/// Why lookups do not find a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    /// The cause.
    pub cause: Cause,
    /// If it was evicted: the lowest tier that had it.
    pub tier: Option<Tier>,
    /// The cause applies to a block before it in its prefix, without which it cannot be used.
    pub with_ancestor: bool,
    /// When it left, or its store or restore failed, in microseconds on the clock of `now_us`. For [`Cause::NeverStored`]: no block that
    /// left since then has been forgotten. For [`Cause::Incomplete`]: now.
    pub at_us: u64,
}

impl Absence {
    fn pack(self) -> u64 {
        let tier = self.tier.map_or(0, |tier| u64::from(tier.code()) + 1);
        let ancestor = if self.with_ancestor { WITH_ANCESTOR } else { 0 };
        self.at_us.min(u64::MAX >> CODE_BITS) << CODE_BITS
            | ancestor
            | tier << TIER
            | (u64::from(self.cause.code()) + 1)
    }

    /// Return what a record's last word says; `None` if the record is empty.
    fn unpack(word: u64) -> Option<Absence> {
        let code = |shift: u32, mask: u64| ((word >> shift & mask) as u8).checked_sub(1);
        Some(Absence {
            cause: Cause::from_code(code(0, 0xff)?)?,
            tier: code(TIER, 0xf).and_then(Tier::from_code),
            with_ancestor: word & WITH_ANCESTOR != 0,
            at_us: word >> CODE_BITS,
        })
    }
}

/// The history of a space.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Absences {
    /// Sets of [`WAYS`] records: the two halves of a hash, and a packed [`Absence`]; zeros: empty. Memory is touched as records are added.
    records: Vec<[u64; 3]>,
    /// The latest time of a record that was replaced by another block's.
    forgotten_us: u64,
}

impl Absences {
    /// Create the history of a space with at most `entries` cached blocks.
    pub fn new(entries: u32) -> Absences {
        Absences::with_records((entries as usize).next_power_of_two().clamp(RECORDS.0, RECORDS.1))
    }

    fn with_records(count: usize) -> Absences {
        Absences { records: vec![[0; 3]; count], forgotten_us: 0 }
    }

    fn set_of(&self, hash: u128) -> std::ops::Range<usize> {
        // The constants are primes of xxHash. Engines may number their blocks: a sum spreads halves that differ in few bits.
        let (low, high) = (hash as u64, (hash >> 64) as u64);
        let mixed = low.wrapping_mul(0x9e37_79b1_85eb_ca87).wrapping_add(high.wrapping_mul(0xc2b2_ae3d_27d4_eb4f));
        let sets = (self.records.len() / WAYS) as u64;
        let first = (((mixed >> 32) * sets) >> 32) as usize * WAYS;
        first..first + WAYS
    }

    /// Note what happened to a block.
    pub fn note(&mut self, hash: u128, absence: Absence) {
        let (low, high) = (hash as u64, (hash >> 64) as u64);
        let set = self.set_of(hash);
        let records = &mut self.records[set];
        let is_its = |record: &[u64; 3]| record[2] != 0 && record[..2] == [low, high];
        let at = records.iter().position(is_its).unwrap_or_else(|| {
            // An empty record is the smallest of all; the time is in the highest bits.
            (0..WAYS).min_by_key(|&at| records[at][2]).unwrap_or(0)
        });
        let before = std::mem::replace(&mut records[at], [low, high, absence.pack()]);
        if before[..2] != [low, high] {
            self.forgotten_us = self.forgotten_us.max(before[2] >> CODE_BITS);
        }
    }

    /// Return the last thing that happened to a block, as far as it is known.
    pub fn of(&self, hash: u128) -> Option<Absence> {
        let halves = [hash as u64, (hash >> 64) as u64];
        let records = &self.records[self.set_of(hash)];
        records.iter().filter(|record| record[..2] == halves).find_map(|record| Absence::unpack(record[2]))
    }

    /// Return the time since which nothing that happened has been forgotten.
    pub fn known_since_us(&self) -> u64 {
        self.forgotten_us
    }

    /// Return the bytes of the table.
    pub fn bytes(&self) -> usize {
        self.records.capacity() * size_of::<[u64; 3]>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn absence(cause: u8, tier: u8, with_ancestor: bool, at_us: u64) -> Absence {
        let cause = Cause::ALL[usize::from(cause) % Cause::ALL.len()];
        Absence { cause, tier: tier.checked_sub(1).and_then(Tier::from_code), with_ancestor, at_us }
    }

    proptest! {
        /// What is found is what was noted last; what was noted after `known_since_us` is found.
        #[test]
        fn the_history_is_true_and_knows_how_far_it_reaches(
            sets in 1usize..4,
            notes in proptest::collection::vec((0u64..60, any::<u8>(), 0u8..4, any::<bool>(), 0u64..3), 0..300),
        ) {
            let (mut absences, mut model, mut now_us) = (Absences::with_records(sets * WAYS), BTreeMap::new(), 0);
            for (hash, cause, tier, ancestor, later) in notes {
                now_us += later;
                let (hash, absence) = (u128::from(hash) << 60, absence(cause, tier, ancestor, now_us));
                absences.note(hash, absence);
                model.insert(hash, absence);
                for (&hash, &absence) in &model {
                    let found = absences.of(hash);
                    prop_assert!(found.is_none_or(|found| found == absence), "{found:?} is not {absence:?}");
                    prop_assert!(found.is_some() || absence.at_us <= absences.known_since_us());
                }
            }
        }
    }

    #[test]
    fn the_table_is_bounded_and_its_oldest_block_is_replaced_first() {
        assert_eq!([1, u32::MAX >> 1].map(|entries| Absences::new(entries).bytes()), [96 << 10, 3 << 19]);
        let mut absences = Absences::with_records(WAYS);
        for hash in 1..=WAYS as u128 + 1 {
            absences.note(hash, absence(2, 0, false, hash as u64));
        }
        assert_eq!((absences.of(1), absences.of(2)), (None, Some(absence(2, 0, false, 2))));
        assert_eq!(absences.known_since_us(), 1);
    }

    #[test]
    fn numbered_hashes_spread_over_the_sets() {
        let mut absences = Absences::new(1);
        let hashes = || (1..=40).flat_map(|prefix| (1..=16).map(move |block| prefix << 64 | block));
        hashes().for_each(|hash| absences.note(hash, absence(2, 0, false, 1)));
        assert!(hashes().all(|hash| absences.of(hash).is_some()));
    }
}

//! Consecutive numbers for ids, in the order of their first appearance.
//!
//! A hash table with open addressing, at most half full. Sixteen consecutive ids share a line of the table, since the ids of a
//! request are mostly consecutive. The line depends on a secret seed, so that a trace cannot provoke collisions.

use std::hash::{BuildHasher, RandomState};

/// Ids that share a line, as a power of two: a line has 64 bytes.
const LINE: u32 = 4;
/// Initial entries of a table.
const ENTRIES_MIN: usize = 1 << 10;

/// Numbered ids.
#[derive(Debug)]
pub(super) struct Numbers {
    /// Numbers plus one; 0: empty.
    table: Vec<u32>,
    ids: Vec<u64>,
    seed: u64,
}

impl Default for Numbers {
    fn default() -> Self {
        Numbers { table: vec![0; ENTRIES_MIN], ids: Vec::new(), seed: RandomState::new().hash_one(0u8) }
    }
}

impl Numbers {
    /// Return the number of an id; a new id gets the next number.
    pub fn of(&mut self, id: u64) -> u32 {
        if (self.ids.len() + 1) * 2 > self.table.len() {
            self.grow();
        }
        let mut at = self.home(id);
        loop {
            match self.table[at] {
                0 => break,
                entry if self.ids[entry as usize - 1] == id => return entry - 1,
                _ => at = self.after(at),
            }
        }
        self.ids.push(id);
        self.table[at] = self.ids.len() as u32;
        self.ids.len() as u32 - 1
    }

    fn home(&self, id: u64) -> usize {
        // A folded product: both halves of the full product with an odd number (that of MurmurHash's last round).
        let product = u128::from(id >> LINE ^ self.seed) * 0xff51_afd7_ed55_8ccd;
        let mixed = product as u64 ^ (product >> 64) as u64;
        let within = (id ^ mixed >> (u64::BITS - LINE)) & ((1 << LINE) - 1);
        (mixed << LINE | within) as usize & (self.table.len() - 1)
    }

    /// Return the next place to try: in another line, and eventually everywhere.
    fn after(&self, at: usize) -> usize {
        (at + (1 << LINE) + 1) & (self.table.len() - 1)
    }

    fn grow(&mut self) {
        self.table = vec![0; self.table.len() * 2];
        for number in 0..self.ids.len() {
            let mut at = self.home(self.ids[number]);
            while self.table[at] != 0 {
                at = self.after(at);
            }
            self.table[at] = number as u32 + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn numbers_like_a_map_whatever_the_ids() {
        let strides: [fn(u64) -> u64; 5] =
            [|i| i, |i| i << 4, |i| i << 40, |i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15), |i| !i];
        for stride in strides {
            let (mut numbers, mut model) = (Numbers::default(), HashMap::new());
            // Each id twice, the second time out of order.
            for i in (0..6_000).flat_map(|i| [i, i * 7 % 6_000]) {
                let fresh = model.len() as u32;
                assert_eq!(numbers.of(stride(i)), *model.entry(stride(i)).or_insert(fresh));
            }
        }
    }
}

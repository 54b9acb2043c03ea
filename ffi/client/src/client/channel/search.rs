//! Lookup of a whole prefix by probes.
//!
//! A block is cached only if its parent is cached, so a few hashes suffice. Each round divides the unknown range into as many parts
//! as a list holds, and probes the last block of each part. The next round searches the part in which the prefix ends. Two rounds
//! cover the square of the list length.

use super::blocks::Found;
use kvtide_wire::lists::HASHES_MAX;

/// State of a lookup.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// Blocks below this index are cached.
    known: usize,
    /// Blocks from this index on are not cached.
    open: usize,
    /// Of the first round's probes: the number found, and how many of them are in host memory.
    first: Option<(u32, u32)>,
}

impl Search {
    /// Create a search over `blocks` blocks.
    pub fn new(blocks: usize) -> Search {
        Search { known: 0, open: blocks, first: None }
    }

    /// Return the next hashes to probe; `None`: the search is complete.
    pub fn probes(&mut self, hashes: &[u128]) -> Option<Vec<u128>> {
        (self.known < self.open).then(|| (0..self.count()).map(|i| hashes[self.at(i)]).collect())
    }

    /// Return the number of blocks that the probes divide into equal parts.
    pub fn range(&self) -> u32 {
        (self.open - self.known) as u32
    }

    /// Apply an answer: how many probes, from the first on, are cached, and how many of them are in host memory.
    pub fn answered(&mut self, found: u32, in_host: u32) {
        let found = (found as usize).min(self.count());
        self.first.get_or_insert((found as u32, in_host));
        let known = found.checked_sub(1).map_or(self.known, |last| self.at(last) + 1);
        if found < self.count() {
            self.open = self.at(found);
        }
        self.known = known;
    }

    /// Return the result.
    pub fn found(&self) -> Found {
        let (found, in_host) = self.first.unwrap_or_default();
        let permille = u64::from(in_host) * 1000 / u64::from(found.max(1));
        Found { blocks: self.known as u32, in_host_permille: permille as u32 }
    }

    fn count(&self) -> usize {
        (self.open - self.known).min(HASHES_MAX)
    }

    /// Index of the last block of part `i`.
    fn at(&self, i: usize) -> usize {
        self.known + ((self.open - self.known) * (i + 1)).div_ceil(self.count()) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_found_in_few_rounds() {
        for blocks in [0usize, 1, 2, 127, 128, 129, 1000, 1024, 16384, 20000] {
            let hashes: Vec<u128> = (1..=blocks as u128).collect();
            for cached in (0..=blocks).step_by(1 + blocks / 97).chain([blocks]) {
                let (mut search, mut rounds) = (Search::new(blocks), 0);
                while let Some(probes) = search.probes(&hashes) {
                    assert!(probes.len() <= HASHES_MAX && probes.is_sorted());
                    let found = probes.iter().filter(|hash| **hash <= cached as u128).count() as u32;
                    search.answered(found, found / 2);
                    rounds += 1;
                }
                assert_eq!(search.found().blocks as usize, cached, "of {blocks}");
                assert!(
                    rounds <= if blocks <= HASHES_MAX * HASHES_MAX { 2 } else { 3 },
                    "{rounds} rounds for {blocks}"
                );
                assert!(search.found().in_host_permille <= 500);
            }
        }
    }
}

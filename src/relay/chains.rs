//! The cached blocks of a space by its feed: each with its parent, and the runs that were sent to the store.

use crate::run::{BlockKey, runs_of};
use std::collections::HashMap;

/// Maximum blocks of a prefix, as a bound for walks along parents.
const PREFIX_MAX: usize = 1 << 20;

/// One cached block.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u128,
    /// Bit `i`: the run of 2^i blocks that ends here was taken.
    taken: u32,
}

/// The runs of a prefix.
#[derive(Debug, Default)]
pub struct Taken {
    /// Blocks of the prefix.
    pub blocks: u32,
    /// Runs to copy, front to back.
    pub runs: Vec<Vec<BlockKey>>,
    /// Last hash and length of the runs that were taken before.
    pub others: Vec<(u128, usize)>,
}

/// The cached blocks of one space.
#[derive(Debug, Default)]
pub struct Chains {
    nodes: HashMap<u128, Node>,
}

impl Chains {
    /// Forget everything.
    pub fn clear(&mut self) {
        self.nodes.clear();
    }

    /// Return the number of blocks.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Add a block. If a relay stored it, the store has the runs that end with it.
    pub fn insert(&mut self, hash: u128, parent: u128, relayed: bool) {
        self.nodes.insert(hash, Node { parent, taken: if relayed { u32::MAX } else { 0 } });
    }

    /// Remove a block.
    pub fn remove(&mut self, hash: u128) {
        self.nodes.remove(&hash);
    }

    /// Return the hashes of the prefix that ends with a block, from its first block on; `None` if it is not cached completely.
    pub fn prefix(&self, last: u128) -> Option<Vec<u128>> {
        let (mut hashes, mut at) = (Vec::new(), last);
        while at != 0 {
            if hashes.len() == PREFIX_MAX {
                return None;
            }
            hashes.push(at);
            at = self.nodes.get(&at)?.parent;
        }
        hashes.reverse();
        Some(hashes)
    }

    /// Return how many of the hashes of a prefix are cached, from the first on.
    pub fn longest(&self, hashes: &[u128]) -> usize {
        hashes.iter().take_while(|hash| self.nodes.contains_key(hash)).count()
    }

    /// Return whether all blocks of a run are cached.
    pub fn has_all(&self, run: &[BlockKey]) -> bool {
        run.iter().all(|block| self.nodes.contains_key(&block.hash))
    }

    /// Take the runs of the prefix that ends with `last`, of at most `run_blocks` blocks each, that were not taken before.
    pub fn take_runs(&mut self, last: u128, run_blocks: u32) -> Taken {
        let Some(hashes) = self.prefix(last) else { return Taken::default() };
        let keys = keys_of(&hashes);
        let mut taken = Taken { blocks: keys.len() as u32, ..Taken::default() };
        for (first, len) in runs_of(0, keys.len() as u32, run_blocks) {
            let run = &keys[first as usize..(first + len) as usize];
            let end = run[run.len() - 1].hash;
            let Some(node) = self.nodes.get_mut(&end) else { continue };
            let bit = 1 << len.trailing_zeros();
            if node.taken & bit == 0 {
                node.taken |= bit;
                taken.runs.push(run.to_vec());
            } else {
                taken.others.push((end, run.len()));
            }
        }
        taken
    }

    /// Let a run be taken again: it could not be sent.
    pub fn give_back(&mut self, run: &[BlockKey]) {
        if let Some(node) = run.last().and_then(|last| self.nodes.get_mut(&last.hash)) {
            node.taken &= !(1 << (run.len() as u32).trailing_zeros());
        }
    }
}

/// Return the keys of the blocks of a prefix with these hashes.
#[must_use]
pub fn keys_of(hashes: &[u128]) -> Vec<BlockKey> {
    let parents = std::iter::once(&0).chain(hashes);
    (0..).zip(hashes.iter().zip(parents)).map(|(index, (&hash, &parent))| BlockKey { hash, parent, index }).collect()
}

/// Return the hashes that are no parent of another one: the ends of prefixes.
#[must_use]
pub fn ends(stored: &[(u128, u128)]) -> Vec<u128> {
    let parents: std::collections::HashSet<u128> = stored.iter().map(|(_, parent)| *parent).collect();
    stored.iter().map(|(hash, _)| *hash).filter(|hash| !parents.contains(hash)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_taken_once_and_again_after_they_failed() {
        let mut chains = Chains::default();
        (1..=13u128).for_each(|hash| chains.insert(hash, hash - 1, false));
        let ends = |runs: &[Vec<BlockKey>]| runs.iter().map(|run| (run[0].index, run.len())).collect::<Vec<_>>();
        let runs = chains.take_runs(13, 8).runs;
        assert_eq!(ends(&runs), [(0, 8), (8, 4), (12, 1)]);
        assert_eq!((runs[1][0].parent, runs[1][0].hash, runs[1][3].hash), (8, 9, 12));
        assert!(chains.take_runs(13, 8).runs.is_empty() && chains.take_runs(8, 8).runs.is_empty());
        let taken = chains.take_runs(13, 8);
        assert_eq!((taken.blocks, taken.others), (13, vec![(8, 8), (12, 4), (13, 1)]));
        (14..=16u128).for_each(|hash| chains.insert(hash, hash - 1, false));
        assert_eq!(ends(&chains.take_runs(16, 8).runs), [(8, 8)], "the tail has grown to a full run");
        chains.give_back(&runs[0]);
        assert_eq!(ends(&chains.take_runs(16, 8).runs), [(0, 8)]);
        (1..=8u128).for_each(|hash| chains.insert(hash, hash - 1, true));
        (9..=12u128).for_each(|hash| chains.insert(hash, hash - 1, false));
        assert_eq!(ends(&chains.take_runs(12, 8).runs), [(8, 4)], "what came from the store does not go back");
    }

    #[test]
    fn a_prefix_that_lacks_a_block_has_no_runs() {
        let mut chains = Chains::default();
        (1..=4u128).for_each(|hash| chains.insert(hash, hash - 1, false));
        chains.remove(2);
        assert_eq!((chains.prefix(4), chains.prefix(1)), (None, Some(vec![1])));
        assert_eq!((chains.longest(&[1, 2, 3]), chains.longest(&[5])), (1, 0));
        assert!(chains.take_runs(4, 8).runs.is_empty() && !chains.has_all(&keys_of(&[1, 2])));
        assert_eq!(super::ends(&[(1, 0), (2, 1), (5, 1), (3, 2)]), [5, 3]);
    }
}

//! Reachability of blocks: a lookup finds a block only if all its ancestors are present.

use super::check::Findings;
use kvtide_format::log::SpaceKey;
use std::collections::HashMap;

/// State of an entry in the search.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Its parent.
    Parent(u128),
    Reached,
    Unreachable,
}

/// Count, on each disk, the good blocks with an ancestor that is on none of the disks. All shards count together; the space
/// itself handles an entry with a missing shard.
pub(super) fn mark<'a>(disks: impl Iterator<Item = &'a mut Findings>) {
    let mut disks: Vec<&mut Findings> = disks.collect();
    let mut entries: HashMap<(SpaceKey, u128), Known> = HashMap::new();
    for findings in &disks {
        for (slab, block) in findings.good() {
            entries.insert((slab.key, block.hash), Known::Parent(block.parent));
        }
    }
    let keys: Vec<(SpaceKey, u128)> = entries.keys().copied().collect();
    for key in keys {
        settle(&mut entries, key);
    }
    for findings in &mut disks {
        let lost = findings.good().filter(|(slab, block)| entries[&(slab.key, block.hash)] == Known::Unreachable);
        let regions: Vec<u32> = lost.map(|(slab, _)| slab.region).collect();
        for region in regions {
            findings.unreachable(region);
        }
    }
}

/// Follow the parents of an entry to a known result, and record it for all entries on the way.
fn settle(entries: &mut HashMap<(SpaceKey, u128), Known>, (space, hash): (SpaceKey, u128)) {
    let mut way = Vec::new();
    let mut at = hash;
    let end = loop {
        match entries.get(&(space, at)) {
            // No root: a cycle, which hashes of an engine do not form.
            Some(Known::Parent(_)) if way.len() > entries.len() => break Known::Unreachable,
            Some(Known::Parent(0)) => {
                way.push(at);
                break Known::Reached;
            }
            Some(Known::Parent(parent)) => {
                way.push(at);
                at = *parent;
            }
            Some(known) => break *known,
            None => break Known::Unreachable,
        }
    };
    for hash in way {
        entries.insert((space, hash), end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: SpaceKey = SpaceKey([1; 32]);

    fn settled(parents: &[(u128, u128)]) -> Vec<u128> {
        let mut entries: HashMap<_, _> =
            parents.iter().map(|&(hash, parent)| ((SPACE, hash), Known::Parent(parent))).collect();
        for (hash, _) in parents {
            settle(&mut entries, (SPACE, *hash));
        }
        let reached = parents.iter().map(|(hash, _)| *hash);
        reached.filter(|hash| entries[&(SPACE, *hash)] == Known::Reached).collect()
    }

    #[test]
    fn a_block_is_reached_from_a_root_alone() {
        assert_eq!(settled(&[(3, 2), (2, 1), (1, 0)]), [3, 2, 1]);
        assert_eq!(settled(&[(3, 2), (1, 0), (4, 3)]), [1], "2 is missing, so 3 and 4 are not reached");
        assert_eq!(settled(&[(1, 2), (2, 1)]), [], "a circle");
    }
}

//! Recovered blocks of an earlier run, in the order in which the core accepts them: ancestors first, over all disks, prefix chain
//! by prefix chain.
//!
//! Chains come in the order in which their first blocks were recorded, oldest first. Unreachable blocks (an ancestor is lost, or on
//! a missing disk) come last; the core erases them.

use crate::space::messages::Region;
use kvtide_format::log::{Blocks, Put};
use kvtide_tiering::api::DiskSlot;

/// Recovered blocks for the core.
#[derive(Debug)]
pub(in crate::space) struct Restore {
    slabs: Vec<(u32, Blocks)>,
    /// Slab and row, in order.
    order: Vec<Place>,
    next: usize,
    /// Number of unreachable blocks at the end of the order.
    unreachable: usize,
}

/// A block: index of its slab, and its row there.
type Place = (u32, u32);

/// A block with its sort key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    parent: u128,
    hash: u128,
    place: Place,
}

impl Restore {
    /// Take the blocks of adopted regions, which are ordered by grant, oldest first.
    pub fn new(regions: Vec<Region>) -> Restore {
        let slabs: Vec<(u32, Blocks)> =
            regions.into_iter().filter_map(|region| Some((region.grant.slab, region.blocks?))).collect();
        let mut nodes: Vec<Node> = Vec::with_capacity(slabs.iter().map(|(_, blocks)| blocks.len()).sum());
        for ((_, blocks), slab) in slabs.iter().zip(0..) {
            let node = |(row, put): (u32, Put<'_>)| Node { parent: put.parent, hash: put.hash, place: (slab, row) };
            nodes.extend((0..).zip(blocks.iter()).map(node));
        }
        nodes.sort_unstable();
        let (order, unreachable) = order(&nodes);
        Restore { slabs, order, next: 0, unreachable }
    }

    /// Return the next block and its slot.
    pub fn next(&mut self) -> Option<(DiskSlot, Put<'_>)> {
        let (slab, row) = *self.order.get(self.next)?;
        self.next += 1;
        let (slab, blocks) = &self.slabs[slab as usize];
        let put = blocks.get(row as usize);
        Some((DiskSlot { slab: *slab, slot: put.slot, generation: put.generation }, put))
    }

    /// Return the number of blocks.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Return the number of unreachable blocks.
    pub fn unreachable(&self) -> usize {
        self.unreachable
    }
}

/// Order nodes, which are sorted by parent and hash, by chains. Also return the number of unreachable ones. A cache entry is
/// several nodes, one per shard; all of them come before any child.
fn order(nodes: &[Node]) -> (Vec<Place>, usize) {
    let mut order = Vec::with_capacity(nodes.len());
    let mut visited = vec![false; nodes.len()];
    let group_at = |begin: usize| {
        let first = nodes[begin];
        let same = |node: &Node| (node.parent, node.hash) == (first.parent, first.hash);
        begin..begin + nodes[begin..].iter().take_while(|node| same(node)).count()
    };
    let groups_of = |parent: u128| {
        let mut begin = nodes.partition_point(|node| node.parent < parent);
        std::iter::from_fn(move || {
            let first = nodes.get(begin).filter(|node| node.parent == parent)?;
            let group = group_at(begin);
            begin = group.end;
            Some((first.place, group))
        })
    };
    // The top of the stack is visited next, so the oldest chain is pushed last.
    let mut stack: Vec<_> = groups_of(0).collect();
    stack.sort_unstable_by_key(|(place, _)| std::cmp::Reverse(*place));
    while let Some((_, group)) = stack.pop() {
        // An entry under two parents, or one that is its own ancestor, is not a valid chain; it is visited once.
        if std::mem::replace(&mut visited[group.start], true) {
            continue;
        }
        visited[group.clone()].fill(true);
        order.extend(nodes[group.clone()].iter().map(|node| node.place));
        stack.extend(groups_of(nodes[group.start].hash));
    }
    let reached = order.len();
    let left = nodes.iter().zip(&visited).filter(|(_, visited)| !**visited);
    order.extend(left.map(|(node, _)| node.place));
    (order, nodes.len() - reached)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn nodes(list: &[(u128, u128)]) -> Vec<Node> {
        let mut nodes: Vec<Node> =
            (0..).zip(list).map(|(row, &(parent, hash))| Node { parent, hash, place: (0, row) }).collect();
        nodes.sort_unstable();
        nodes
    }

    proptest! {
        #[test]
        fn every_block_comes_once_and_after_all_shard_copies_of_its_parent(
            list in prop::collection::vec((0u128..12, 1u128..12), 0..60)
        ) {
            let (order, unreachable) = order(&nodes(&list));
            prop_assert_eq!(order.len(), list.len());
            prop_assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), list.len());
            // Compute the reachable entries level by level.
            let mut reached = BTreeSet::from([0]);
            while list.iter().any(|(parent, hash)| reached.contains(parent) && reached.insert(*hash)) {}
            let reachable = list.iter().filter(|(parent, _)| reached.contains(parent)).count();
            prop_assert_eq!(unreachable, list.len() - reachable);
            let mut seen = BTreeSet::from([0]);
            for (_, row) in &order[..reachable] {
                let (parent, hash) = list[*row as usize];
                prop_assert!(seen.contains(&parent), "{:?} before its parent", (parent, hash));
                seen.insert(hash);
            }
        }
    }

    #[test]
    fn chains_come_oldest_first_and_whole_and_all_shards_of_an_entry_before_its_children() {
        // Rows: the younger chain 7-8 was recorded second, in two shards; 9 has no ancestor.
        let list = [(0, 70), (70, 3), (0, 7), (7, 8), (0, 7), (7, 8), (5, 9), (3, 2)];
        let (order, unreachable) = order(&nodes(&list));
        let rows: Vec<u32> = order.into_iter().map(|(_, row)| row).collect();
        assert_eq!((rows, unreachable), (vec![0, 1, 7, 2, 4, 3, 5, 6], 1));
    }
}

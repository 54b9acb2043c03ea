//! The upper bound: maximum hits of a cache of this size that knows the future.
//!
//! The block with the latest next use is evicted first (Belady 1966). A block is used whenever one of its descendants is, so its
//! next use is never after theirs. With ties broken deepest first, no block is evicted before its descendants, and only ends of
//! prefixes are lost. A block that is not used again in time is not cached, and one that is never used again is evicted at once.

use super::super::trace::Requests;
use std::collections::BinaryHeap;

/// Not used again.
const NEVER: u32 = u32::MAX;
/// Not in the cache.
const ABSENT: u32 = u32::MAX;

/// Return the maximum number of a trace's blocks that a cache of `capacity` blocks can hit, as whole prefixes.
#[must_use]
pub fn belady(trace: &Requests, capacity: u64) -> u64 {
    let next = next_uses(trace);
    // Request of the next use of each cached block; `NEVER` for blocks that are not cached. Heap entries that differ from it are
    // outdated.
    let mut held = vec![NEVER; trace.distinct() as usize];
    let mut heap: BinaryHeap<(u64, u32)> = BinaryHeap::new();
    let (mut count, mut found, mut at) = (0u64, 0u64, 0usize);
    for request in trace.iter() {
        let hits = request.blocks.iter().take_while(|&&block| held[block as usize] != NEVER).count();
        found += hits as u64;
        for (depth, &block) in request.blocks.iter().enumerate() {
            let use_next = next[at];
            at += 1;
            let before = std::mem::replace(&mut held[block as usize], use_next);
            count -= u64::from(before != NEVER);
            if use_next != NEVER {
                count += 1;
                heap.push((u64::from(use_next) << 32 | depth as u64, block));
            }
        }
        while count > capacity {
            let Some((key, block)) = heap.pop() else { break };
            if u64::from(held[block as usize]) == key >> 32 {
                held[block as usize] = NEVER;
                count -= 1;
            }
        }
    }
    found
}

/// Return, for each use of a block, the request of its next use.
fn next_uses(trace: &Requests) -> Vec<u32> {
    let mut next = vec![NEVER; trace.uses() as usize];
    let mut seen = vec![ABSENT; trace.distinct() as usize];
    let mut at = next.len();
    for index in (0..trace.len()).rev() {
        let Some(request) = trace.get(index) else { continue };
        for &block in request.blocks.iter().rev() {
            at -= 1;
            next[at] = seen[block as usize];
            seen[block as usize] = index as u32;
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn trace(requests: &[Vec<u64>]) -> Requests {
        let lines: Vec<String> =
            requests.iter().map(|blocks| format!("{{\"timestamp\": 0, \"hash_ids\": {blocks:?}}}")).collect();
        Requests::read(lines.join("\n").as_bytes()).expect("well-formed")
    }

    #[test]
    fn what_is_used_again_last_goes_first() {
        // One block fits: block 0 is kept instead of 1 and 2, and block 3 cannot be hit.
        let trace = trace(&[vec![0, 1], vec![2], vec![0, 3], vec![0]]);
        assert_eq!([belady(&trace, 0), belady(&trace, 1), belady(&trace, 9)], [0, 2, 2]);
    }

    /// Return the best result over all eviction choices, for traces short enough to try all.
    fn best(requests: &[Vec<u64>], held: &BTreeSet<u64>, capacity: usize) -> u64 {
        let Some((first, rest)) = requests.split_first() else { return 0 };
        let hits = first.iter().take_while(|block| held.contains(block)).count() as u64;
        let all: Vec<u64> = held.iter().chain(first).copied().collect::<BTreeSet<_>>().into_iter().collect();
        let choices = (0..1u32 << all.len()).filter(|bits| bits.count_ones() as usize <= capacity);
        let kept = |bits: u32| (0..all.len()).filter(|i| bits >> i & 1 == 1).map(|i| all[i]).collect();
        hits + choices.map(|bits| best(rest, &kept(bits), capacity)).max().unwrap_or(0)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn no_choice_finds_more(walks in proptest::collection::vec((0u64..2, 0u64..2, 1usize..3), 1..5), capacity in 0usize..3) {
            // Paths in a forest of two roots with two children each.
            let requests: Vec<Vec<u64>> = walks.iter().map(|&(root, child, length)| {
                [root, 2 + 2 * root + child][..length].to_vec()
            }).collect();
            prop_assert_eq!(belady(&trace(&requests), capacity as u64), best(&requests, &BTreeSet::new(), capacity));
        }
    }
}

//! Work of the index in steps, in tables so large that work in proportion to a table, a chain or all requests exceeds the limits.

use crate::api::{Cause, Eviction, Level, Limits, NONE, Plane, Policy, Retention, SpaceConfig};
use crate::blocks::BlockTable;
use crate::index::PrefixIndex;
use crate::sessions::{Copies, Phase, Store, Who};
use crate::tables::index::evict::Priority;
use crate::tables::index::{Absence, Index, ShardCopy, WITH_SLOT, steps};

/// Maximum steps of one change of an entry, or one choice of a victim.
const FEW: u64 = 512;
const CHAIN: u128 = 100_000;
const STORES: u32 = 10_000;

fn index(entries: u128, policy: Eviction) -> Index {
    Index::new(entries as u32, 1, 16, policy, Retention::default())
}

fn prefix_index(entries: u32) -> PrefixIndex {
    let limits = Limits {
        sessions_max: 1,
        blocks_max: 1,
        seqs_max: 1,
        seq_blocks_max: 1,
        lanes_max: 1,
        jobs_max: 2,
        requests_max: STORES,
        host_bytes_max: 0,
        nvme_bytes_max: 0,
        ios_max: 0,
        entries_max: entries,
        log_requests_max: 0,
    };
    let cfg = SpaceConfig { page_tokens: 16, planes: vec![Plane::full(1)], shards: 1, limits, policy: Policy::plain() };
    PrefixIndex::new(BlockTable::new(cfg).unwrap())
}

fn drop_leaf(index: &mut Index, leaf: u32) {
    assert!(index.is_leaf(leaf));
    index.remove(leaf, Absence { cause: Cause::Operator, tier: None, with_ancestor: false, at_us: 0 });
}

/// Restored, so that the first block is queued first.
#[test]
fn a_chain_of_100_000_goes_by_a_few_steps_a_block() {
    for policy in Eviction::ALL {
        let mut index = index(CHAIN, policy);
        let mut above = NONE;
        for hash in 1..=CHAIN {
            above = steps::at_most(FEW, || index.insert(hash, above).unwrap());
            steps::at_most(FEW, || index.add_copy(above, ShardCopy::IndexOnly(7), 1));
        }
        for hash in (1..=CHAIN).rev() {
            let leaf = steps::at_most(FEW, || index.first(&WITH_SLOT).unwrap());
            assert_eq!(index.hash(leaf), hash);
            steps::at_most(FEW, || drop_leaf(&mut index, leaf));
        }
    }
}

/// A parent is put in among entries that were used before and after it.
#[test]
fn a_parent_becomes_a_leaf_by_a_few_steps() {
    let (blocks, chains) = (100, CHAIN / 100);
    for policy in Eviction::ALL {
        let mut index = index(CHAIN, policy);
        for block in 0..blocks {
            for chain in 0..chains {
                let above = index.find((chain + 1) << 64 | block).unwrap_or(NONE);
                let c = index.insert((chain + 1) << 64 | (block + 1), above).unwrap();
                index.add_copy(c, ShardCopy::Block(7), 0);
            }
        }
        // Used in an order that differs from that of the chains, from the last block to the first.
        for use_of in 0..chains {
            let chain = use_of * 7919 % chains + 1;
            for block in (1..=blocks).rev() {
                let c = index.find(chain << 64 | block).unwrap();
                steps::at_most(FEW, || {
                    index.activate(c);
                    index.begin_use(c);
                    index.end_use(c, block as u64 * 1_000, Priority::Neutral);
                    index.deactivate(c);
                });
            }
        }
        for _ in 0..CHAIN {
            let leaf = steps::at_most(FEW, || index.first_leaf().unwrap());
            steps::at_most(FEW, || drop_leaf(&mut index, leaf));
        }
        index.check().unwrap();
    }
}

#[test]
fn hashes_with_equal_halves_are_found_by_a_few_steps() {
    let mut index = index(CHAIN, Eviction::Lru);
    let hash = |i: u128| i << 64 | i;
    // In the mean: a table that is two thirds full has some long runs.
    steps::at_most(CHAIN as u64 * 8, || (1..=CHAIN).for_each(|i| _ = index.insert(hash(i), NONE).unwrap()));
    steps::at_most(CHAIN as u64 * 8, || assert!((1..=CHAIN).all(|i| index.find(hash(i)).is_some())));
}

/// A chain of 1,000 blocks, each with 1,000 children.
#[test]
fn a_subtree_of_a_million_goes_by_a_few_steps_a_block() {
    let mut index = prefix_index(1_001_000);
    let mut above = NONE;
    for hash in 1..=1_000 {
        let c = index.index.insert(hash, above).unwrap();
        (1..=1_000).for_each(|child| _ = index.index.insert(hash | child << 64, c).unwrap());
        above = c;
    }
    let top = index.index.find(1).unwrap();
    steps::at_most(FEW * 1_001_000, || index.remove_entry(top, Cause::Operator));
    assert_eq!(index.index.live_len(), 0);
    index.index.check().unwrap();
}

#[test]
fn the_parents_of_10_000_stores_that_wait_stay_by_a_few_steps() {
    let mut index = prefix_index(2 * STORES);
    index.attach(0, 0, 1, &[1]);
    let hashes = || (1..=u128::from(STORES)).map(|i| i << 64);
    for hash in hashes() {
        index.index.insert(hash, NONE).unwrap();
        let store = Store {
            first: 1,
            parent: hash,
            above: hash,
            level: Level::Published,
            new: 1,
            next: NONE,
            copies: Copies::default(),
        };
        let op = index.new_op(Who { session: 0, channel: 0, tag: 0 }, NONE, store, u64::MAX).unwrap();
        steps::at_most(FEW, || index.hold_parent(hash));
        index.enter(0, op, Phase::Admission);
    }
    index.check_parents_of_stores().unwrap();
    hashes().for_each(|hash| _ = index.index.insert(hash | 1, NONE).unwrap());
    for _ in 0..STORES {
        steps::at_most(FEW, || assert!(index.drop_idle_entry()));
    }
    assert!(hashes().all(|hash| index.index.find(hash).is_some()));
    for op in 0..STORES {
        steps::at_most(FEW, || index.release_parent(0, op));
    }
    assert!(index.index.held().is_empty());
    index.index.check().unwrap();
}

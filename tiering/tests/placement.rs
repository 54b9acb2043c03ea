//! Prefix chains stay on one disk: a lost disk loses only its own chains, and disks fill by weight.

use kvtide_fake::*;
use kvtide_tiering::api::*;
use kvtide_tiering::node::{DiskConfig, Disks, DisksConfig};
use std::collections::{BTreeMap, BTreeSet};

const PAGE: u64 = 4096;
const BLOCK: u64 = 2 * PAGE;
/// Blocks per region.
const SLOTS: u64 = 8;
/// Blocks per chain.
const CHAIN_BLOCKS: u128 = 6;

/// Disks of equal size with these weights and this number of regions.
fn world(weights: &[u32], regions: u32) -> World {
    let mut cfg = config(vec![full(PAGE as u32), full(PAGE as u32)]);
    cfg.limits.host_bytes_max = 64 * PAGE;
    cfg.limits.nvme_bytes_max = 1 << 30;
    (cfg.limits.blocks_max, cfg.limits.entries_max) = (1024, 1024);
    (cfg.policy.clean_low_percent, cfg.policy.clean_high_percent) = (100, 100);
    let mut w = World::new(cfg);
    (w.node.frames, w.node.slab_frames) = (vec![64], 64);
    let disks = weights.iter().map(|&weight| DiskConfig { regions, weight }).collect();
    let mut node = Disks::new(DisksConfig { region_bytes: SLOTS * BLOCK, disks, quotas_bytes: vec![1 << 40] });
    node.join(0, 0, BLOCK).unwrap();
    w.disk.node = Some(node);
    w.attach(0, 1, &[64]);
    w
}

fn hashes(chain: u128) -> Vec<u128> {
    (0..CHAIN_BLOCKS).map(|i| 1 + chain * 100 + i).collect()
}

fn publish(w: &mut World, chain: u128) {
    let hashes = hashes(chain);
    w.ok(0, Request::SeqCreate { seq: 0 });
    w.fill(0, 0, CHAIN_BLOCKS as u32, 2);
    w.ok(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &hashes, level: Level::Stored });
    w.ok(0, Request::SeqDrop { seq: 0 });
}

/// Return the disks of each chain's blocks.
fn disks_of(w: &World) -> BTreeMap<u128, BTreeSet<u16>> {
    let mut disks: BTreeMap<u128, BTreeSet<u16>> = BTreeMap::new();
    for (at, rec) in &w.log.records {
        disks.entry((rec.hash - 1) / 100).or_default().insert(w.disk.placed[&at.0]);
    }
    disks
}

fn found(w: &mut World, chain: u128) -> u64 {
    w.ok(0, Request::SeqCreate { seq: 0 });
    let found = w.ok(0, Request::AttachPrefix { seq: 0, hashes: &hashes(chain), asked: Some(0) }).value;
    w.ok(0, Request::SeqDrop { seq: 0 });
    found
}

#[test]
fn losing_one_of_three_disks_loses_the_chains_on_it_and_no_others() {
    let mut w = world(&[1, 2, 1], 40);
    // The last chains are still in memory; the earlier ones were evicted from it.
    let (asked, chains) = (40u128, 60u128);
    (0..chains).for_each(|chain| publish(&mut w, chain));
    let disks = disks_of(&w);
    assert_eq!(disks.len() as u128, chains);
    assert!(disks.values().all(|on| on.len() == 1), "every chain is on one disk: {disks:?}");
    assert_eq!(w.core.counters().chains_overflowed, 0);
    let count = |disk: u16| disks.values().filter(|on| on.contains(&disk)).count();
    // Regions are granted by weight, and chains follow them, within one or two regions.
    let counts = [count(0), count(1), count(2)];
    assert!(counts[0].abs_diff(15) <= 3 && counts[1].abs_diff(30) <= 3 && counts[2].abs_diff(15) <= 3, "{counts:?}");
    let lost: BTreeSet<u128> = disks.iter().filter(|(_, on)| on.contains(&1)).map(|(&chain, _)| chain).collect();
    let slabs: Vec<u32> = w.disk.placed.iter().filter(|(_, disk)| **disk == 1).map(|(&slab, _)| slab).collect();
    w.disk.node.as_mut().unwrap().fail(1);
    for slab in slabs {
        w.kill_disk(slab);
    }
    for chain in 0..asked {
        match lost.contains(&chain) {
            true => assert_eq!(found(&mut w, chain), 0, "chain {chain} was on the lost disk"),
            false => assert_eq!(found(&mut w, chain), CHAIN_BLOCKS as u64, "chain {chain} is on another disk"),
        }
    }
    // New chains go to the two remaining disks.
    (100..120).for_each(|chain| publish(&mut w, chain));
    let after = disks_of(&w);
    assert!((100..120).all(|chain| after[&chain].len() == 1 && !after[&chain].contains(&1)));
}

#[test]
fn a_chain_whose_disk_is_full_goes_on_elsewhere_and_is_counted() {
    // Two disks of one region of eight blocks each: the second chain begins on the first disk and ends on the other.
    let mut w = world(&[1, 1], 1);
    publish(&mut w, 0);
    assert_eq!((disks_of(&w)[&0].len(), w.core.counters().chains_overflowed), (1, 0));
    publish(&mut w, 1);
    assert_eq!((disks_of(&w)[&0].len(), disks_of(&w)[&1].len()), (1, 2));
    assert_eq!(w.core.counters().chains_overflowed, 1, "children stay on the disk of their parent");
}

/// An attached prefix is continued on its disk, by any sequence.
#[test]
fn the_children_of_a_cached_prefix_go_to_its_disk() {
    let mut w = world(&[1, 1, 1], 20);
    (0..6).for_each(|chain| publish(&mut w, chain));
    let disks = disks_of(&w);
    for chain in 0..6u128 {
        let mut all = hashes(chain);
        all.extend((0..3).map(|i| 50 + chain * 100 + i));
        w.ok(0, Request::SeqCreate { seq: 0 });
        assert_eq!(w.ok(0, Request::AttachPrefix { seq: 0, hashes: &all, asked: Some(0) }).value, CHAIN_BLOCKS as u64);
        w.fill(0, 0, 3, 2);
        let (first, parent) = (CHAIN_BLOCKS as u32, all[CHAIN_BLOCKS as usize - 1]);
        w.ok(
            0,
            Request::Publish { seq: 0, first, parent, hashes: &all[CHAIN_BLOCKS as usize..], level: Level::Stored },
        );
        w.ok(0, Request::SeqDrop { seq: 0 });
    }
    assert_eq!(disks_of(&w), disks, "no chain has come to another disk");
    assert_eq!(w.core.counters().chains_overflowed, 0);
}

/// Unpublished blocks of a running sequence also stay on one disk.
#[test]
fn a_sequence_that_outgrows_memory_stays_on_a_disk() {
    let mut w = world(&[1, 1, 1], 20);
    w.ok(0, Request::SeqCreate { seq: 0 });
    w.fill(0, 0, 90, 2);
    let on: BTreeSet<u16> = w.disk.pages.keys().map(|key| w.disk.placed[&key.0]).collect();
    assert!(w.disk.pages.len() > 3 * 2 * SLOTS as usize && on.len() == 1, "{on:?}");
}

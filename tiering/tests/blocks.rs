//! Stores from an engine's own memory while room is short: the parent of a store in progress is not dropped, and a cached block is
//! not dropped while its own copies are in progress.

use kvtide_fake::*;
use kvtide_tiering::api::*;

/// Two sessions without tier 0 and eight host frames.
fn world(change: impl FnOnce(&mut SpaceConfig)) -> World {
    let mut cfg = config(vec![full(1000)]);
    (cfg.policy.host_high_percent, cfg.policy.host_low_percent) = (100, 100);
    change(&mut cfg);
    let mut w = World::new(cfg);
    (w.node.frames, w.node.slab_frames) = (vec![8], 8);
    w.attach(0, 1, &[0]);
    w.attach(1, 1, &[0]);
    w
}

fn ask(w: &mut World, s: SessionId, after: (u32, u128), hashes: &[u128]) -> u16 {
    w.ask_store(s, after, hashes, Level::Published, 0)
}

fn store(w: &mut World, s: SessionId, at: (u32, u128), hashes: &[u128]) {
    let tag = ask(w, s, at, hashes);
    while w.answer(s, tag).is_none() {
        assert!(w.run_job(s), "a store goes on");
        w.settle();
    }
    assert_eq!(w.answer(s, tag).unwrap().status, Status::Ok);
}

/// The least recently used prefix has a store of one child in progress; meanwhile other stores use all the room.
fn others_come(w: &mut World) {
    let (a, b, c) = (1 << 64, 2 << 64, 3 << 64);
    store(w, 0, (0, 0), &[a, b]);
    w.eager = false;
    let tag = ask(w, 0, (2, b), &[c]);
    for other in 10..40u128 {
        store(w, 1, (0, 0), &[other << 64]);
    }
    assert_eq!(w.found(1, &[a, b, c]), 2, "the store is under way");
    assert_eq!(w.found(1, &[10 << 64]), 0, "room was short");
    assert!(w.run_job(0));
    w.settle();
    assert_eq!(w.answer(0, tag).unwrap().status, Status::Ok);
    assert_eq!(w.found(1, &[a, b, c]), 3);
    // After the store the prefix is evicted like any other.
    for other in 40..60u128 {
        store(w, 1, (0, 0), &[other << 64]);
    }
    assert_eq!(w.found(1, &[a, b, c]), 0);
}

#[test]
fn the_parent_of_a_store_stays_where_host_memory_is_short() {
    others_come(&mut world(|_| {}));
}

#[test]
fn the_parent_of_a_store_stays_where_the_index_is_full() {
    let mut w = world(|cfg| cfg.limits.entries_max = 5);
    others_come(&mut w);
}

#[test]
fn the_parent_of_a_store_stays_where_block_ids_are_short() {
    let mut w = world(|cfg| cfg.limits.blocks_max = 5);
    others_come(&mut w);
}

#[test]
fn the_parent_of_a_store_stays_where_it_was_refused_on_nvme() {
    let mut w = world(|cfg| (cfg.limits.nvme_bytes_max, cfg.policy.nvme_admission) = (1 << 24, Admission::SecondTouch));
    (w.disk.node_slots, w.disk.slab_slots) = (64, 64);
    others_come(&mut w);
}

/// Many stores, each with its own parent that NVMe did not admit.
#[test]
fn the_parents_of_many_stores_stay_where_it_was_refused_on_nvme() {
    const STORES: u32 = 12;
    let mut w = world(|cfg| (cfg.limits.nvme_bytes_max, cfg.policy.nvme_admission) = (1 << 24, Admission::SecondTouch));
    (w.node.frames, w.node.slab_frames) = (vec![2 * STORES + 1], 2 * STORES + 1);
    let prefix = |i: u32| u128::from(i + 1) << 64;
    (0..STORES).for_each(|i| store(&mut w, 0, (0, 0), &[prefix(i)]));
    w.eager = false;
    let tags: Vec<u16> = (0..STORES).map(|i| ask(&mut w, 0, (1, prefix(i)), &[u128::from(i + 101) << 64])).collect();
    (0..20).for_each(|i| store(&mut w, 1, (0, 0), &[u128::from(i + 201_u32) << 64]));
    assert!((0..STORES).all(|i| w.found(1, &[prefix(i)]) == 1), "parents of stores are cached");
    w.eager = true;
    w.settle();
    assert!(tags.iter().all(|&tag| w.answer(0, tag).unwrap().status == Status::Ok));
}

#[test]
fn what_cannot_be_stored_at_all_costs_nobody_anything() {
    let mut w = world(|cfg| cfg.limits.blocks_max = 8);
    let all: Vec<u128> = (1..=8).map(|i| i << 64).collect();
    store(&mut w, 0, (0, 0), &all[..6]);
    w.ok(1, Request::Lease { seq: 0, hash: all[1], count: 2, lease_us: 1_000 });
    let more: Vec<u128> = (11..=17).map(|i| i << 64).collect();
    let tag = ask(&mut w, 0, (0, 0), &more);
    assert_eq!(w.answer(0, tag).unwrap().status, Status::NoSpace);
    assert_eq!(w.found(1, &all[..6]), 6);
    // One block fewer fits beside the leased ones.
    store(&mut w, 0, (0, 0), &more[..6]);
    assert_eq!((w.found(1, &all[..6]), w.found(1, &more[..6])), (2, 6));
}

#[test]
fn the_parent_of_a_store_goes_where_there_is_nothing_else() {
    let mut w = world(|_| {});
    let all: Vec<u128> = (1..=8).map(|i| i << 64).collect();
    store(&mut w, 0, (0, 0), &all);
    // The eighth must make room for the ninth, so the ninth cannot be stored.
    let tag = ask(&mut w, 0, (8, all[7]), &[9 << 64]);
    assert_eq!(w.answer(0, tag).unwrap().status, Status::NotAdmitted);
    assert_eq!(w.found(1, &all), 7);
}

/// The session's shard has a branched prefix only in tier 0, and another shard uses it. Host memory is short, and a store is in
/// progress on the older branch.
#[test]
fn the_parent_of_a_store_stays_where_tier_0_has_its_only_copy() {
    let mut cfg = config(vec![full(1000)]);
    cfg.shards = 2;
    let mut w = World::new(cfg);
    (w.node.frames, w.node.slab_frames) = (vec![3], 3);
    w.attach_shard(0, 0, 1, &[16]).unwrap();
    w.attach_shard(1, 1, 1, &[16]).unwrap();
    let (p, a, b, c) = (1 << 64, 2 << 64, 3 << 64, 4 << 64);
    for s in [1, 0] {
        for (seq, branch) in [(0, a), (1, b)] {
            w.ok(s, Request::SeqCreate { seq });
            w.fill(s, seq, 2, 1);
            w.ok(s, Request::Publish { seq, first: 0, parent: 0, hashes: &[p, branch], level: Level::Published });
        }
    }
    [0, 1].into_iter().for_each(|seq| _ = w.ok(0, Request::SeqDrop { seq }));
    assert_eq!((w.found(1, &[p, a]), w.found(1, &[p, b])), (2, 2));
    assert_eq!(w.core.occupancy().host_frames_used, 3, "the other shard's");
    store(&mut w, 0, (2, a), &[c]);
    assert_eq!(w.found(1, &[p, a]), 2);
    let again = w.core.counters().tier0_to_host.total_pages();
    store(&mut w, 0, (2, a), &[c]);
    assert_eq!(w.core.counters().tier0_to_host.total_pages(), again, "it is there");
}

/// Stores are in progress on each of twelve least recently used prefixes; `room` sets the shortage. All other blocks are only on
/// NVMe.
fn index_only_entries_go(room: impl FnOnce(&mut SpaceConfig, &mut Disk)) {
    const STORES: u32 = 12;
    let mut cfg = config(vec![full(1000)]);
    (cfg.limits.blocks_max, cfg.limits.nvme_bytes_max) = (2 * STORES + 1, 1 << 24);
    (cfg.policy.nvme_high_percent, cfg.policy.nvme_low_percent) = (100, 100);
    cfg.policy.nvme_admission = Admission::SecondTouch;
    let mut disk = Disk { node_slots: 64, slab_slots: 64, ..Disk::default() };
    room(&mut cfg, &mut disk);
    let mut w = World::new(cfg);
    w.disk = disk;
    w.attach(0, 1, &[0]);
    w.attach(1, 1, &[0]);
    let prefix = |i: u32| u128::from(i + 1) << 64;
    let on = |i: u32| u128::from(i + 101) << 64;
    let other = |i: u32| u128::from(i + 201) << 64;
    (0..STORES).for_each(|i| store(&mut w, 0, (0, 0), &[prefix(i)]));
    w.eager = false;
    let tags: Vec<u16> = (0..STORES).map(|i| ask(&mut w, 0, (1, prefix(i)), &[on(i)])).collect();
    for i in 0..40 {
        let hash = other(i);
        let block = i % 8;
        w.write_engine(1, block);
        let request =
            Request::StoreBlocks { first: 0, parent: 0, hashes: &[hash], engine: &[block], level: Level::Stored };
        let tag = w.ask(1, request);
        while w.answer(1, tag).is_none() {
            assert!(w.run_job(1) || w.run_io(0), "store {i} goes on");
            w.settle();
        }
        assert_eq!(w.answer(1, tag).unwrap().status, Status::Ok, "store {i}");
    }
    assert!(w.core.counters().cache_drops > 0, "room was short");
    assert!((0..STORES).all(|i| w.found(1, &[prefix(i)]) == 1), "parents of stores are cached");
    w.eager = true;
    w.settle();
    for (i, tag) in (0..).zip(tags) {
        assert_eq!(w.answer(0, tag).unwrap().status, Status::Ok, "the store on prefix {i}");
    }
}

#[test]
fn the_parents_of_many_stores_stay_where_the_index_is_full_of_index_only_entries() {
    index_only_entries_go(|cfg, _| cfg.limits.entries_max = 32);
}

#[test]
fn the_parents_of_many_stores_stay_where_slots_are_short() {
    index_only_entries_go(|cfg, disk| {
        cfg.policy.nvme_admission = Admission::All;
        (disk.node_slots, disk.slab_slots) = (24, 24);
    });
}

#[test]
fn a_store_of_more_than_host_memory_holds_costs_nothing_that_is_cached() {
    let mut w = world(|cfg| cfg.limits.nvme_bytes_max = 1 << 20);
    (w.disk.node_slots, w.disk.slab_slots) = (64, 16);
    let hashes = |from: u128, count: u128| -> Vec<u128> { (from..from + count).map(|i| i << 64).collect() };
    let (before, all) = (hashes(1, 4), hashes(100, 12));
    store(&mut w, 1, (0, 0), &before);
    w.eager = false;
    // Copies are writing all host frames: the rest waits until those can be written back.
    let tag = ask(&mut w, 0, (0, 0), &all);
    assert_eq!(w.found(1, &before), 4);
    w.eager = true;
    w.settle();
    assert_eq!(w.answer(0, tag).unwrap().status, Status::Ok);
    assert_eq!((w.found(1, &before), w.found(1, &all)), (4, 12));
}

/// A fault that costs only copies: it makes tests of this file fail. Not the one with the only copy in tier 0: there the second copies of
/// the other shard's pages give way first.
#[cfg(feature = "mutants")]
#[test]
fn dropping_the_parent_of_a_store_is_noticed() {
    use kvtide_tiering::mutants::{self, Mutant};
    let tests: [fn(); 5] = [
        the_parents_of_many_stores_stay_where_the_index_is_full_of_index_only_entries,
        the_parents_of_many_stores_stay_where_slots_are_short,
        the_parent_of_a_store_stays_where_host_memory_is_short,
        the_parent_of_a_store_stays_where_the_index_is_full,
        the_parent_of_a_store_stays_where_block_ids_are_short,
    ];
    for (number, test) in tests.into_iter().enumerate() {
        test();
        mutants::select(Some(Mutant::DropsParentsOfStores));
        let noticed = std::panic::catch_unwind(test).is_err();
        mutants::select(None);
        assert!(noticed, "test {number}");
    }
}

/// A child whose index does not follow its parent's would be ranked and listed as another block of the prefix.
#[test]
fn a_block_that_does_not_follow_its_parent_is_refused() {
    let mut w = world(|_| {});
    let (a, b, c) = (1 << 64, 2 << 64, 3 << 64);
    store(&mut w, 0, (0, 0), &[a, b]);
    for (first, parent) in [(7, a), (2, a), (1, b), (3, b), (u32::MAX, b), (1, 0), (0, a)] {
        let tag = ask(&mut w, 1, (first, parent), &[c]);
        let status = w.answer(1, tag).unwrap().status;
        assert!(matches!(status, Status::Invalid | Status::Limit), "{first} after {parent:x}: {status:?}");
    }
    assert_eq!(w.found(1, &[a, b, c]), 2);
    store(&mut w, 0, (2, b), &[c]);
    assert_eq!(w.found(1, &[a, b, c]), 3);
}

//! Why blocks are not cached: each cause from what brings it about, and that no answer contradicts a lookup.

use kvtide_fake::hashes as prefix;
use kvtide_fake::*;
use kvtide_tiering::Absence;
use kvtide_tiering::api::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const PAGE: u64 = 4096;
const HOST: u32 = 8;

/// Two sessions without tier 0, and eight host frames.
fn world(nvme_blocks: u32, change: impl FnOnce(&mut SpaceConfig)) -> World {
    let mut cfg = config(vec![full(PAGE as u32)]);
    cfg.limits.nvme_bytes_max = u64::from(nvme_blocks) * PAGE;
    (cfg.policy.host_high_percent, cfg.policy.host_low_percent) = (100, 100);
    change(&mut cfg);
    let mut w = World::sized(cfg, (HOST, HOST), (nvme_blocks, nvme_blocks.max(1)));
    w.attach(0, 1, &[0]);
    w.attach(1, 1, &[0]);
    w
}

/// Ask for a store of the blocks of a prefix from `first` on.
fn ask(w: &mut World, hashes: &[u128], first: usize) -> u16 {
    let parent = if first == 0 { 0 } else { hashes[first - 1] };
    w.ask_store(0, (first as u32, parent), &hashes[first..], Level::Published, 0)
}

fn store(w: &mut World, number: u128, blocks: u128) -> Status {
    w.now += 1;
    let tag = ask(w, &prefix(number, blocks), 0);
    w.answer(0, tag).unwrap().status
}

/// Store the first prefix, then others until its last block is dropped. Return its absence.
fn driven_out(w: &mut World) -> Absence {
    let last = prefix(1, 2)[1];
    assert_eq!((store(w, 1, 2), w.core.absence(last)), (Status::Ok, None));
    for other in 2..64 {
        store(w, other, 2);
        if let Some(absence) = w.core.absence(last) {
            assert_eq!(absence.at_us, w.now);
            return absence;
        }
    }
    panic!("it stays")
}

fn pass(w: &mut World, us: u64) {
    for _ in 0..64 {
        w.pass(us / 64);
    }
}

fn cause(w: &World, hash: u128) -> Cause {
    w.core.absence(hash).unwrap().cause
}

#[test]
fn a_block_that_gives_way_names_what_was_full() {
    let evicted = |cause, tier, at_us| Absence { cause, tier: Some(tier), with_ancestor: false, at_us };
    let mut w = world(0, |_| {});
    assert_eq!(driven_out(&mut w), evicted(Cause::MemoryFull, Tier::Host, w.now));
    let mut w = world(16, |_| {});
    assert_eq!(driven_out(&mut w), evicted(Cause::NvmeFull, Tier::Nvme, w.now));
    let mut w = world(0, |cfg| cfg.limits.entries_max = 5);
    assert_eq!(driven_out(&mut w), evicted(Cause::IndexFull, Tier::Host, w.now));
}

#[test]
fn a_block_that_was_kept_from_nvme_names_by_what() {
    let evicted = |cause, at_us| Absence { cause, tier: Some(Tier::Host), with_ancestor: false, at_us };
    let mut w = world(64, |cfg| cfg.policy.nvme_admission = Admission::SecondTouch);
    assert_eq!(driven_out(&mut w), evicted(Cause::NotAdmitted, w.now));
    let mut w = world(64, |cfg| cfg.policy.nvme_bytes_per_day = 1);
    assert_eq!(driven_out(&mut w), evicted(Cause::OverBudget, w.now));
    let mut w = world(64, |_| {});
    w.disk.fail_next.extend([Status::Io; 1000]);
    let (mut numbers, last) = (2.., prefix(1, 2)[1]);
    store(&mut w, 1, 2);
    while w.core.absence(last).is_none() {
        let number = numbers.next().filter(|&number| number < 64).unwrap();
        ask(&mut w, &prefix(number, 2), 0);
        pass(&mut w, 2_000_000);
    }
    let absence = w.core.absence(last).unwrap();
    assert_eq!(absence, evicted(Cause::Unwritten, absence.at_us));
}

#[test]
fn a_block_that_gives_way_to_another_space_says_so() {
    let mut w = world(0, |_| {});
    store(&mut w, 1, 2);
    w.event(Event::Reclaim { cached: true }).unwrap();
    assert_eq!(w.node.returned.len(), 1);
    assert_eq!(cause(&w, prefix(1, 2)[1]), Cause::OtherSpace);
}

#[test]
fn age_and_operators_are_causes() {
    const TTL_US: u64 = 3_600_000_000;
    let mut w = world(0, |cfg| cfg.policy.retention.ttl_us = TTL_US);
    store(&mut w, 1, 2);
    pass(&mut w, 2 * TTL_US);
    assert!(prefix(1, 2).iter().all(|&hash| cause(&w, hash) == Cause::Expired));
    let mut w = world(0, |_| {});
    store(&mut w, 1, 2);
    w.event(Event::Evict { hash: Some(prefix(1, 2)[0]) }).unwrap();
    assert!(prefix(1, 2).iter().all(|&hash| cause(&w, hash) == Cause::Operator));
}

#[test]
fn what_a_disk_loses_is_lost_with_what_follows() {
    let gone = |w: &World, cause| {
        let absences = prefix(1, 3).into_iter().map(|hash| w.core.absence(hash));
        let expected = [None, Some((cause, None, false)), Some((cause, None, true))];
        assert_eq!(absences.map(|f| f.map(|f| (f.cause, f.tier, f.with_ancestor))).collect::<Vec<_>>(), expected);
    };
    let on_nvme = || {
        let mut w = world(64, |_| {});
        store(&mut w, 1, 3);
        // The host frames of the first prefix are taken.
        (2..6).for_each(|other| _ = store(&mut w, other, 2));
        w
    };
    let load = |w: &mut World| {
        w.ok(1, Request::Lease { seq: 0, hash: prefix(1, 3)[2], count: 3, lease_us: 100_000_000 });
        w.ask(1, Request::LoadBlocks { seq: 0, first: 1, engine: &[1] });
        pass(w, 2_000_000);
        w.ok(1, Request::SeqDrop { seq: 0 });
    };
    let mut w = on_nvme();
    w.disk.rotten = w.disk.pages.keys().copied().collect();
    load(&mut w);
    gone(&w, Cause::Corrupt);
    let mut w = on_nvme();
    w.disk.fail_next.extend([Status::Io; 1000]);
    load(&mut w);
    gone(&w, Cause::Unreadable);
    let mut w = on_nvme();
    let slab = *w.disk.slabs.keys().next().unwrap();
    w.kill_disk(slab);
    assert_eq!(cause(&w, prefix(1, 3)[0]), Cause::DiskLost);
}

#[test]
fn what_only_an_engine_had_is_lost_with_it() {
    let mut cfg = config(vec![full(PAGE as u32)]);
    (cfg.policy.clean_low_percent, cfg.policy.clean_high_percent) = (0, 0);
    let mut w = World::new(cfg);
    w.attach(0, 1, &[8]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    w.fill(0, 0, 2, 1);
    w.eager = false;
    let hashes = prefix(1, 2);
    w.ok(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &hashes, level: Level::Published });
    w.event(Event::SessionLost { session: 0 }).unwrap();
    assert!(hashes.iter().all(|&hash| cause(&w, hash) == Cause::EngineLost), "{:?}", w.core.absence(hashes[0]));
}

#[test]
fn a_store_that_fails_says_why() {
    let mut w = world(0, |_| {});
    let hashes = prefix(1, 4);
    // Its parent was never cached.
    let tag = ask(&mut w, &hashes, 1);
    assert_eq!(w.answer(0, tag).unwrap().status, Status::NotAdmitted);
    assert_eq!(hashes.iter().map(|&hash| cause(&w, hash)).collect::<BTreeSet<_>>().len(), 2);
    assert_eq!((cause(&w, hashes[0]), cause(&w, hashes[1])), (Cause::NeverStored, Cause::StoreNoParent));
    // A copy fails.
    w.fail_next.extend([Status::Ok, Status::Io]);
    ask(&mut w, &hashes, 0);
    assert_eq!((w.core.absence(hashes[0]), cause(&w, hashes[1])), (None, Cause::StoreFailed));
    // Leased blocks leave no room.
    store(&mut w, 2, u128::from(HOST) - 1);
    w.ok(0, Request::Lease { seq: 0, hash: prefix(2, u128::from(HOST) - 1)[6], count: 7, lease_us: 100_000_000 });
    assert_eq!(store(&mut w, 3, 4), Status::NoSpace);
    assert_eq!(cause(&w, prefix(3, 4)[3]), Cause::StoreNoRoom);
    // An engine dies.
    let mut w = world(0, |_| {});
    w.eager = false;
    ask(&mut w, &hashes, 0);
    w.agents.remove(&0);
    w.event(Event::SessionLost { session: 0 }).unwrap();
    assert_eq!(cause(&w, hashes[0]), Cause::StoreFailed);
}

#[test]
fn a_publish_that_fails_says_why() {
    let mut w = World::new(config(vec![full(PAGE as u32)]));
    w.attach(0, 1, &[8]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    w.fill(0, 0, 3, 1);
    let hashes = prefix(1, 3);
    let rest = Request::Publish { seq: 0, first: 1, parent: 9, hashes: &hashes[1..], level: Level::Published };
    assert_eq!(w.call(0, rest).status, Status::NotAdmitted);
    assert_eq!((cause(&w, hashes[0]), cause(&w, hashes[2])), (Cause::NeverStored, Cause::StoreNoParent));
}

#[test]
fn a_block_of_an_earlier_run_that_does_not_come_back_says_why() {
    let mut w = world(64, |_| {});
    let (one, two) = (prefix(1, 3), prefix(2, 1));
    store(&mut w, 1, 3);
    store(&mut w, 2, 1);
    w.log.records.retain(|_, record| record.hash != one[1]);
    w.log.records.values_mut().filter(|record| record.hash == two[0]).for_each(|record| record.planes = vec![0]);
    w.restart(vec![HOST]);
    assert_eq!((w.core.absence(one[0]), cause(&w, one[1])), (None, Cause::NeverStored), "no record is left of it");
    assert_eq!((cause(&w, one[2]), cause(&w, two[0])), (Cause::RestoreNoParent, Cause::RestoreRefused));
}

#[test]
fn a_block_that_a_shard_lacks_is_incomplete() {
    let mut cfg = config(vec![full(PAGE as u32)]);
    cfg.shards = 2;
    let mut w = World::new(cfg);
    w.attach(0, 1, &[0]);
    w.attach_shard(1, 1, 1, &[0]).unwrap();
    let hashes = prefix(1, 1);
    store(&mut w, 1, 1);
    assert_eq!(w.core.absence(hashes[0]), Some(Absence { at_us: w.now, ..w.core.absence(hashes[0]).unwrap() }));
    assert_eq!(cause(&w, hashes[0]), Cause::Incomplete);
    w.write_engine(1, 0);
    w.ok(1, Request::StoreBlocks { first: 0, parent: 0, hashes: &hashes, engine: &[0], level: Level::Published });
    assert_eq!(w.core.absence(hashes[0]), None);
}

/// Each lookup counts once, by its first missing block.
#[test]
fn a_lookup_that_misses_is_counted_by_its_cause() {
    let mut w = world(0, |_| {});
    store(&mut w, 1, 3);
    w.event(Event::Evict { hash: Some(prefix(1, 3)[1]) }).unwrap();
    let h = prefix(1, 4);
    let lookup = |w: &mut World, hashes: &[u128], asked| {
        w.ok(1, Request::Lookup { hashes, asked, range: 1 });
    };
    lookup(&mut w, &h, 4);
    lookup(&mut w, &h[2..], 0);
    lookup(&mut w, &h[..1], 1);
    lookup(&mut w, &[77], 1);
    let missed = w.core.counters().hits.missed;
    let counted: Vec<_> = Cause::ALL.into_iter().zip(missed).filter(|(_, count)| *count > 0).collect();
    assert_eq!(counted, [(Cause::NeverStored, 1), (Cause::Operator, 1)]);
    w.ok(1, Request::SeqCreate { seq: 0 });
    w.ok(1, Request::AttachPrefix { seq: 0, hashes: &h, asked: Some(4) });
    assert_eq!(w.core.counters().hits.missed[usize::from(Cause::Operator.code())], 2);
}

#[derive(Clone, Debug)]
enum Act {
    Store { number: u128, blocks: u128 },
    Evict { number: u128, block: u128 },
    Clear,
    Lose,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (1u128..12, 1u128..5).prop_map(|(number, blocks)| Act::Store { number, blocks }),
        2 => (1u128..12, 1u128..5).prop_map(|(number, block)| Act::Evict { number, block }),
        1 => Just(Act::Clear),
        1 => Just(Act::Lose),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A block has an absence if and only if lookups do not find it. A block that left after the time since which nothing is forgotten
    /// names a cause, and the last one. A block without a store has none.
    #[test]
    fn no_absence_contradicts_a_lookup(acts in proptest::collection::vec(act(), 1..60), nvme in prop::sample::select(vec![0u32, 12])) {
        let mut w = world(nvme, |cfg| (cfg.limits.entries_max, cfg.limits.blocks_max) = (9, 64));
        // Blocks that were asked to be stored; when each was last seen cached.
        let (mut stored, mut seen) = (BTreeSet::new(), BTreeMap::new());
        let all: Vec<u128> = (1..12).flat_map(|number| prefix(number, 5)).collect();
        for act in acts {
            w.now += 1;
            match act {
                Act::Store { number, blocks } => {
                    store(&mut w, number, blocks);
                    stored.extend(prefix(number, blocks));
                }
                Act::Evict { number, block } => w.event(Event::Evict { hash: Some(number << 64 | block) }).unwrap(),
                Act::Clear => w.event(Event::Evict { hash: None }).unwrap(),
                Act::Lose => {
                    let slab = w.disk.slabs.keys().next().copied();
                    slab.into_iter().for_each(|slab| w.kill_disk(slab));
                }
            }
            for &hash in &all {
                let found = w.ok(1, Request::Lookup { hashes: &[hash], asked: 0, range: 0 }).value as u32 == 1;
                let absence = w.core.absence(hash);
                prop_assert_eq!(absence.is_none(), found);
                if found {
                    seen.insert(hash, w.now);
                }
                let Some(absence) = absence else { continue };
                prop_assert!(absence.at_us <= w.now);
                if absence.cause == Cause::NeverStored {
                    let left = seen.get(&hash).copied();
                    prop_assert!(left.is_none_or(|left| left <= w.core.absences_known_since_us()), "{left:?} {absence:?}");
                } else {
                    prop_assert!(stored.contains(&hash));
                    prop_assert!(seen.get(&hash).is_none_or(|&seen| seen <= absence.at_us), "an old cause: {absence:?}");
                }
            }
        }
    }
}

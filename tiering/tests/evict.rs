//! Eviction order of cached blocks: a block is evicted after its descendants under every policy, exactly least recently used first
//! under LRU, and by priority and age.

use kvtide_fake::*;
use kvtide_tiering::ActionBuf;
use kvtide_tiering::api::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const PAGE: u32 = 4096;

/// The cost of computing doubles with every page after the first.
const STEEP: Retention = Retention { recompute_tokens_per_s: 1_000, attention_doubles_at: 4, ..Retention::DEFAULT };

fn world(eviction: Eviction, retention: Retention, host: u32, slots: u32) -> World {
    let mut cfg = config(vec![full(PAGE)]);
    cfg.limits.host_bytes_max = u64::from(host) * u64::from(PAGE);
    cfg.limits.nvme_bytes_max = u64::from(slots) * u64::from(PAGE);
    (cfg.policy.eviction, cfg.policy.retention) = (eviction, retention);
    let mut w = World::sized(cfg, (host, host), (slots, slots.max(1)));
    w.attach(0, 1, &[32]);
    w.event(Event::Tick).unwrap();
    w
}

/// Publish and drop a sequence that attaches the cached prefix of these blocks, with a priority.
fn run(w: &mut World, hashes: &[u128], priority: u8) -> usize {
    w.ok(0, Request::SeqCreate { seq: 0 });
    let found = match w.call(0, Request::AttachPrefix { seq: 0, hashes, asked: Some(0) }) {
        Done { status: Status::Ok, value, .. } => value as usize,
        _ => 0,
    };
    w.fill(0, 0, (hashes.len() - found) as u32, 1);
    let (parent, rest) = (if found == 0 { 0 } else { hashes[found - 1] }, &hashes[found..]);
    w.ok(0, Request::Publish { seq: 0, first: found as u32, parent, hashes: rest, level: Level::Published });
    let advice = Advice::Priority(priority);
    w.ok(0, Request::Advise { seq: 0, first: 0, count: hashes.len() as u32, advice });
    w.ok(0, Request::SeqDrop { seq: 0 });
    w.pass(1);
    found
}

/// Return how much of a prefix can be attached now. Uses a copy of the core, because a lookup counts as a use.
fn there(w: &World, hashes: &[u128]) -> usize {
    let (mut core, mut buf) = (w.core.clone(), ActionBuf::new(64, 1024));
    let ask = |core: &mut kvtide_tiering::Core, buf: &mut ActionBuf, request| {
        buf.clear();
        core.handle(w.now, Event::Request { session: 0, channel: 0, tag: 0, timeout_us: 0, request }, buf).unwrap();
        buf.actions().iter().find_map(|a| match a {
            Action::Complete { status: Status::Ok, value, .. } => Some(*value as usize),
            _ => None,
        })
    };
    ask(&mut core, &mut buf, Request::SeqCreate { seq: 1 }).unwrap();
    ask(&mut core, &mut buf, Request::AttachPrefix { seq: 1, hashes, asked: Some(0) }).unwrap_or(0)
}

/// Prefixes of a small tree: the choices up to a depth name the block at that depth.
fn prefix(choices: &[u8]) -> Vec<u128> {
    let mut hash = 1;
    choices
        .iter()
        .map(|&c| {
            hash = hash * 131 + 1 + u128::from(c);
            hash
        })
        .collect()
}

fn used_again() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(0u8..3, 1..7), 20..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// For every policy and all tiers: requests with a common prefix find the same part of it, the tables agree, and some blocks
    /// are cached.
    #[test]
    fn presence_is_closed_under_ancestors(runs in used_again(), policy in 0usize..5, slots in prop::sample::select(vec![0u32, 40])) {
        let mut w = world(Eviction::ALL[policy], STEEP, 24, slots);
        let mut found = 0;
        for choices in &runs {
            let hashes = prefix(choices);
            found += run(&mut w, &hashes, 128);
            w.core.check().unwrap();
            for other in &runs {
                let hashes = prefix(other);
                let whole = there(&w, &hashes);
                for part in 1..hashes.len() {
                    prop_assert_eq!(there(&w, &hashes[..part]), whole.min(part));
                }
            }
        }
        prop_assert!(found > 0 || runs.len() < 25);
    }

    /// LRU, deepest first among blocks used at the same time: each cached block was used after all dropped ones.
    #[test]
    fn lru_gives_up_what_was_used_longest_ago(runs in used_again()) {
        let mut w = world(Eviction::Lru, Retention::default(), 24, 0);
        let (mut used, mut clock) = (BTreeMap::<u128, u64>::new(), 0);
        for choices in &runs {
            let hashes = prefix(choices);
            run(&mut w, &hashes, 128);
            for &hash in hashes.iter().rev() {
                clock += 1;
                used.insert(hash, clock);
            }
            let mut kept = BTreeMap::new();
            for choices in &runs {
                let hashes = prefix(choices);
                let whole = there(&w, &hashes);
                hashes.iter().enumerate().for_each(|(i, &hash)| { kept.insert(hash, i < whole); });
            }
            let kept = &kept;
            let of = |there: bool| used.iter().filter(move |(hash, _)| kept[hash] == there).map(|(_, &at)| at);
            let (oldest, newest) = (of(true).min(), of(false).max());
            prop_assert!(oldest.is_none_or(|oldest| newest.is_none_or(|newest| newest < oldest)), "{oldest:?} {newest:?}");
        }
    }
}

#[test]
fn priority_decides_before_the_policy() {
    for policy in Eviction::ALL {
        let mut w = world(policy, Retention::default(), 32, 0);
        run(&mut w, &prefix(&[0, 0, 0]), 200);
        for i in 0..12 {
            run(&mut w, &prefix(&[1, i, 0]), 128);
            run(&mut w, &prefix(&[2, i, 0]), 20);
        }
        assert_eq!(there(&w, &prefix(&[0, 0, 0])), 3, "{policy:?}: of high priority, and within its share");
        let left = |w: &World, of: u8| (0..12).map(|i| there(w, &prefix(&[of, i, 0])).saturating_sub(1)).sum::<usize>();
        let (neutral, low) = (left(&w, 1), left(&w, 2));
        assert!(neutral > 2 * low, "{policy:?}: {neutral} blocks of neutral priority are left and {low} of low");
    }
}

/// High priority does not take the whole capacity.
#[test]
fn high_priority_has_its_share_only() {
    let mut w = world(Eviction::Auto, Retention { high_share_percent: 25, ..Retention::default() }, 32, 0);
    for i in 0..30 {
        run(&mut w, &prefix(&[0, i, 0]), 200);
        run(&mut w, &prefix(&[1, i, 0]), 128);
    }
    let left = |of: u8| (0..30).map(|i| there(&w, &prefix(&[of, i, 0])).saturating_sub(1)).sum::<usize>();
    assert!(left(0) < left(1), "{} of high priority, {} of neutral", left(0), left(1));
}

#[test]
fn what_nobody_uses_for_the_ttl_goes_and_not_before() {
    const TTL_US: u64 = 3_600_000_000;
    for slots in [0, 40] {
        let mut w = world(Eviction::Auto, Retention { ttl_us: TTL_US, attention_doubles_at: 1, ..STEEP }, 64, slots);
        let (old, young) = (prefix(&[0, 0]), prefix(&[1, 1]));
        let pass = |w: &mut World, us: u64| {
            // The daemon ticks often.
            for _ in 0..64 {
                w.pass(us / 64);
            }
        };
        run(&mut w, &old, 128);
        pass(&mut w, TTL_US / 2);
        run(&mut w, &young, 128);
        pass(&mut w, TTL_US * 49 / 100);
        assert_eq!((there(&w, &old), there(&w, &young)), (2, 2), "not before its time");
        pass(&mut w, TTL_US / 4);
        assert_eq!((there(&w, &old), there(&w, &young)), (0, 2));
        assert_eq!(w.core.counters().expired, 2);
        pass(&mut w, TTL_US / 2);
        assert_eq!(there(&w, &young), 0);
    }
}

/// An idle space sets a timer as long as it has blocks that reach the maximum age, and no more often than needed.
#[test]
fn an_idle_space_gives_up_what_is_too_old_and_then_sleeps() {
    const TTL_US: u64 = 1_000_000;
    // The first case exceeds the blocks that one tick drops.
    for (blocks, slots) in [(300, 0), (60, 80)] {
        let mut cfg = config(vec![full(PAGE)]);
        cfg.policy.retention.ttl_us = TTL_US;
        (cfg.limits.blocks_max, cfg.limits.entries_max) = (320, 320);
        cfg.limits.nvme_bytes_max = u64::from(slots) * u64::from(PAGE);
        let mut w = World::new(cfg);
        (w.disk.node_slots, w.disk.slab_slots) = (slots, slots.max(1));
        w.attach(0, 1, &[32]);
        assert_eq!(w.core.next_deadline(), None, "nothing is there that could get old");
        for first in (0..blocks).step_by(20) {
            run(&mut w, &(first..first + 20).map(|i| 1 << 64 | u128::from(i)).collect::<Vec<_>>(), 128);
        }
        let (begun, mut ticks) = (w.now, 0);
        while let Some(at) = w.core.next_deadline() {
            assert!(w.core.counters().expired > 0 || at < begun + TTL_US * 11 / 10, "nothing went for its age");
            w.now = w.now.max(at);
            w.event(Event::Tick).unwrap();
            ticks += 1;
        }
        assert_eq!(w.core.counters().expired, blocks);
        assert!(w.now >= begun + TTL_US && w.now < begun + TTL_US * 11 / 10, "after {} us", w.now - begun);
        assert!(ticks <= 40, "woken {ticks} times");
    }
}

/// A block used after a long pause is young.
#[test]
fn what_is_used_after_a_pause_is_young() {
    const TTL_US: u64 = 3_600_000_000;
    let mut w = world(Eviction::Auto, Retention { ttl_us: TTL_US, ..Retention::DEFAULT }, 64, 0);
    let young = prefix(&[0, 0]);
    w.now += 3 * TTL_US;
    run(&mut w, &young, 128);
    w.event(Event::Tick).unwrap();
    assert_eq!((there(&w, &young), w.core.counters().expired), (2, 0));
}

/// A changed TTL, shorter or longer, holds for cached blocks, with their ages so far.
#[test]
fn another_ttl_holds_for_what_is_there() {
    const HOUR_US: u64 = 3_600_000_000;
    let mut w = world(Eviction::Auto, Retention { ttl_us: HOUR_US, ..Retention::DEFAULT }, 64, 0);
    let pass = |w: &mut World, us: u64| {
        let end = w.now + us;
        w.run_timers(end);
        w.now = end;
    };
    let set = |w: &mut World, ttl_us: u64| {
        let Limits { host_bytes_max, nvme_bytes_max, .. } = w.core.config().limits;
        let mut policy = w.core.config().policy;
        policy.retention.ttl_us = ttl_us;
        w.event(Event::Reconfigure { policy, host_bytes_max, nvme_bytes_max }).unwrap();
    };
    let [old, young, kept] = [0, 1, 2].map(|name| prefix(&[name, 0]));
    run(&mut w, &old, 128);
    pass(&mut w, HOUR_US / 2);
    run(&mut w, &young, 128);
    set(&mut w, HOUR_US / 60);
    assert_eq!((there(&w, &old), there(&w, &young)), (0, 2), "half an hour is more than a minute");
    pass(&mut w, HOUR_US / 60 * 11 / 10);
    assert_eq!(there(&w, &young), 0);
    run(&mut w, &kept, 128);
    set(&mut w, HOUR_US);
    pass(&mut w, HOUR_US * 99 / 100);
    assert_eq!(there(&w, &kept), 2);
    set(&mut w, 0);
    pass(&mut w, 10 * HOUR_US);
    assert_eq!((there(&w, &kept), w.core.next_deadline()), (2, None));
}

/// Return a unique prefix of `blocks` blocks.
fn chain(name: u8, blocks: usize) -> Vec<u128> {
    prefix(&[&[name][..], &vec![0; blocks - 1]].concat())
}

/// Of blocks with equally many uses, the one with the lowest computing cost is evicted first, even if others are older. If depth
/// has no cost, the least recently used is evicted first.
#[test]
fn deep_entries_go_after_shallow_ones() {
    for (doubles_at, kept) in [(STEEP.attention_doubles_at, true), (0, false)] {
        let retention = Retention { attention_doubles_at: doubles_at, ..STEEP };
        for (policy, slots) in [(Eviction::CostAware, 0), (Eviction::CostAware, 24), (Eviction::Auto, 0)] {
            let mut w = world(policy, retention, 24, slots);
            // A prefix that all requests use, and a continuation of it that was used once.
            (0..8).for_each(|_| _ = run(&mut w, &chain(0, 12), 128));
            let deep = [chain(0, 12), vec![7, 8]].concat();
            run(&mut w, &deep, 128);
            (1..30).for_each(|i| _ = run(&mut w, &chain(i, 1), 128));
            assert_eq!(there(&w, &deep), if kept { 14 } else { 12 }, "{policy:?}, {slots} slots, {doubles_at}");
            assert_eq!(there(&w, &chain(1, 1)), 0, "something had to go");
        }
    }
}

/// Attach and read a prefix with these delays per move on disk and bus.
fn read_slowly(w: &mut World, hashes: &[u128], (disk_us, bus_us): (u64, u64)) {
    w.ok(0, Request::SeqCreate { seq: 0 });
    assert_eq!(w.ok(0, Request::AttachPrefix { seq: 0, hashes, asked: Some(0) }).value, hashes.len() as u64);
    w.eager = false;
    let (first, count) = (0, hashes.len() as u32);
    let tag = w.ask(0, Request::Acquire { seq: 0, plane: 0, planes: 1, first, count });
    let mut moves = 0;
    while w.answer(0, tag).is_none() {
        w.now += if w.disk.flight.is_empty() { bus_us } else { disk_us };
        assert!(w.run_io(0) || w.run_job(0), "nothing is under way, and the pages are not there");
        w.settle();
        moves += 1;
    }
    assert!(moves > 0, "it was in tier 0");
    w.eager = true;
    w.settle();
    w.ok(0, Request::Release { seq: 0, plane: 0, planes: 1, first, count });
    w.ok(0, Request::SeqDrop { seq: 0 });
    w.event(Event::Tick).unwrap();
}

/// A block that is computed faster than loaded is evicted first, however often it is used: from host memory over a slow bus, or
/// from a slow disk.
#[test]
fn entries_that_are_dearer_to_load_than_to_compute_go_first() {
    // A first page takes 5 ms to compute, one after four others 20 ms.
    for (host, slots, slow) in [(28, 0, (0, 10_000)), (24, 28, (10_000, 0))] {
        for (times, gone) in [((0, 0), false), (slow, true)] {
            let mut w = world(Eviction::CostAware, STEEP, host, slots);
            let popular: Vec<_> = (1..5).map(|i| chain(i, 1)).collect();
            for _ in 0..6 {
                popular.iter().for_each(|hashes| _ = run(&mut w, hashes, 128));
            }
            // Tier 0 shows other pages now, and so does host memory above NVMe.
            (100..104).for_each(|i| _ = run(&mut w, &chain(i, 12), 20));
            read_slowly(&mut w, &popular[0], times);
            popular.iter().for_each(|hashes| _ = run(&mut w, hashes, 128));
            // A prefix that stays in use, with many children that are used once.
            let base = chain(0, 4);
            run(&mut w, &base, 128);
            w.ok(0, Request::SeqCreate { seq: 2 });
            assert_eq!(w.ok(0, Request::AttachPrefix { seq: 2, hashes: &base, asked: Some(0) }).value, 4);
            (1_000..1_024).for_each(|i| _ = run(&mut w, &[&base[..], &[i]].concat(), 128));
            let left = popular.iter().filter(|hashes| there(&w, hashes) == 1).count();
            assert_eq!(left == 0, gone, "{left} of 4 are there with {slots} slots when moves take {times:?}");
        }
    }
}

/// A block that needs a slot takes that of the first block in the eviction order, in any tier. If the first one itself waits to be
/// written, it is dropped, and stored blocks stay (decision 28).
#[test]
fn what_goes_first_takes_no_slot_from_what_stays_longer() {
    const SLOTS: u32 = 12;
    for policy in Eviction::ALL {
        let mut w = world(policy, Retention::default(), 48, SLOTS);
        let cfg = w.core.config().clone();
        let full = Policy { nvme_high_percent: 100, nvme_low_percent: 100, ..cfg.policy };
        let Limits { host_bytes_max, nvme_bytes_max, .. } = cfg.limits;
        w.event(Event::Reconfigure { policy: full, host_bytes_max, nvme_bytes_max }).unwrap();
        let stored: Vec<_> = (0..SLOTS as u8).map(|i| chain(i, 1)).collect();
        stored.iter().for_each(|hashes| _ = run(&mut w, hashes, 128));
        let before = (w.disk.written, w.core.counters().nvme_drops);
        let there_of = |w: &World| stored.iter().filter(|hashes| there(w, hashes) == 1).count();
        assert_eq!((there_of(&w), w.core.counters().nvme_drops), (SLOTS as usize, 0), "NVMe is just full");
        // The block is unused when its pages leave tier 0, and has low priority.
        let spare = chain(100, 2);
        w.ok(0, Request::SeqCreate { seq: 0 });
        w.fill(0, 0, 2, 1);
        w.eager = false;
        w.ok(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &spare, level: Level::Published });
        w.ok(0, Request::Advise { seq: 0, first: 0, count: 2, advice: Advice::Priority(20) });
        w.ok(0, Request::SeqDrop { seq: 0 });
        w.eager = true;
        w.settle();
        let after = (w.disk.written, w.core.counters().nvme_drops);
        assert_eq!(
            (after, there_of(&w), there(&w, &spare)),
            (before, SLOTS as usize, 0),
            "{policy:?}: written for others' slots"
        );
    }
}

/// If block ids are short, a prefix on NVMe is found completely: other blocks that no higher tier holds release their ids at once.
#[test]
fn a_lookup_is_not_cut_short_for_want_of_a_block() {
    let mut cfg = config(vec![full(PAGE)]);
    cfg.limits.blocks_max = 64;
    cfg.limits.host_bytes_max = 64 * u64::from(PAGE);
    cfg.limits.nvme_bytes_max = 200 * u64::from(PAGE);
    cfg.policy.eviction = Eviction::S3Fifo;
    let mut w = World::sized(cfg, (64, 64), (200, 200));
    w.attach(0, 1, &[32]);
    w.event(Event::Tick).unwrap();
    let blocks = |name: u128, many: u128| (1..=many).map(|block| name << 64 | block).collect::<Vec<_>>();
    let often: Vec<_> = (1..6).map(|name| blocks(name, 20)).collect();
    for _ in 0..3 {
        often.iter().for_each(|hashes| _ = run(&mut w, hashes, 128));
    }
    // Blocks used once are evicted first; these are in tier 0.
    run(&mut w, &blocks(9, 24), 128);
    assert!(w.core.occupancy().published == 124, "nothing had to go: {:?}", w.core.occupancy());
    for hashes in &often {
        assert_eq!(there(&w, hashes), 20, "{:?}", w.core.occupancy());
    }
    assert!(w.core.counters().blocks_given > 0);
}

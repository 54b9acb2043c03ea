//! Figures of hits, and what operators do with cached blocks: pins, eviction by hand.

use kvtide_fake::*;
use kvtide_tiering::api::*;
use kvtide_tiering::{ByTier, EntryStatus};

/// Tokens of a block, as [`config`] has it.
const TOKENS: u64 = 4;

/// Two sessions without tier 0, `host` frames of host memory and 64 slots on NVMe.
fn world(host: u32) -> World {
    let mut cfg = config(vec![full(1000)]);
    (cfg.policy.host_high_percent, cfg.policy.host_low_percent) = (100, 100);
    cfg.limits.nvme_bytes_max = 1 << 24;
    let mut w = World::sized(cfg, (host, host), (64, 64));
    w.attach(0, 1, &[0]);
    w.attach(1, 1, &[0]);
    w
}

fn store(w: &mut World, hashes: &[u128]) {
    w.store(0, (0, 0), hashes, Level::Stored);
}

fn lookup(w: &mut World, hashes: &[u128], asked: u32, range: u32) -> u64 {
    w.ok(1, Request::Lookup { hashes, asked, range }).value & 0xffff
}

fn entry(w: &World, hash: u128) -> EntryStatus {
    w.core.entry(hash).unwrap()
}

#[test]
fn tokens_are_counted_as_asked_found_and_loaded() {
    let mut w = world(8);
    let h = hashes(1, 4);
    store(&mut w, &h);
    // A lookup of 10 blocks by probes of every second one, then of the last gap.
    let probes: Vec<u128> = [h[1], h[3], 97, 98, 99].to_vec();
    assert_eq!(lookup(&mut w, &probes, 10, 10), 2);
    assert_eq!(lookup(&mut w, &[96], 0, 1), 0);
    let hits = w.core.hits(1).unwrap();
    assert_eq!((hits.asked_tokens, hits.found_tokens), (10 * TOKENS, 4 * TOKENS));
    w.ok(1, Request::Lease { seq: 0, hash: h[3], count: 4, lease_us: 1_000_000 });
    w.ok(1, Request::LoadBlocks { seq: 0, first: 0, engine: &[10, 11, 12, 13] });
    let hits = w.core.hits(1).unwrap();
    assert_eq!(hits.loaded_tokens, ByTier { host: 4 * TOKENS, ..ByTier::default() });
    // 30,000 tokens a second; attention doubles that at 30,000 tokens.
    let computed = (0..4).map(|i| (4.0 / 30_000.0 * (1.0 + f64::from(i) * 4.0 / 30_000.0) * 1e6) as u64).sum();
    assert_eq!((hits.recompute_us, hits.load_us), (computed, 0), "the daemon measures loads");
    assert_eq!(w.core.counters().hits, hits, "of the space");
    assert_eq!(w.core.hits(0).unwrap(), kvtide_tiering::Hits::default(), "the other session asked for nothing");
}

/// Engines are not trusted: the numbers of their lookups cannot end a core thread.
#[test]
fn a_lookup_that_claims_anything_overflows_nothing() {
    let mut w = world(8);
    let h = hashes(1, 1);
    store(&mut w, &h);
    for _ in 0..4 {
        assert_eq!(lookup(&mut w, &h, u32::MAX, u32::MAX), 1);
    }
    let claimed = 4 * u64::from(u32::MAX) * TOKENS;
    let mut hits = w.core.hits(1).unwrap();
    assert_eq!((hits.asked_tokens, hits.found_tokens), (claimed, claimed));
    let full = kvtide_tiering::Hits { asked_tokens: u64::MAX, found_tokens: u64::MAX, ..hits };
    hits.add(&full);
    assert_eq!((hits.asked_tokens, hits.found_tokens), (u64::MAX, u64::MAX));
}

#[test]
fn what_left_host_memory_counts_as_loaded_from_nvme() {
    let mut w = world(4);
    let (a, b) = (hashes(1, 2), hashes(2, 4));
    store(&mut w, &a);
    store(&mut w, &b);
    assert_eq!(entry(&w, a[0]).bytes, ByTier { nvme: 1000, ..ByTier::default() }, "the second prefix took its place");
    w.ok(1, Request::Lease { seq: 0, hash: a[1], count: 2, lease_us: 1_000_000 });
    w.ok(1, Request::LoadBlocks { seq: 0, first: 0, engine: &[10, 11] });
    assert_eq!(w.core.hits(1).unwrap().loaded_tokens, ByTier { nvme: 2 * TOKENS, ..ByTier::default() });
}

#[test]
fn attached_blocks_are_loaded_once_and_asked_for_by_who_asks() {
    let mut w = World::new(config(vec![full(1000)]));
    w.attach(0, 1, &[8]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    for i in 0..2u64 {
        let block = w.ok(0, Request::Reserve { seq: 0, count: 1 }).list[0];
        w.write(0, block, 0);
        w.ok(0, Request::Commit { seq: 0, tokens: (i + 1) * TOKENS });
    }
    let h = hashes(1, 3);
    w.ok(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &h[..2], level: Level::Published });
    w.ok(0, Request::SeqCreate { seq: 1 });
    w.ok(0, Request::AttachPrefix { seq: 1, hashes: &h, asked: Some(3) });
    let hits = w.core.hits(0).unwrap();
    assert_eq!((hits.asked_tokens, hits.found_tokens), (3 * TOKENS, 2 * TOKENS));
    assert_eq!(hits.loaded_tokens, ByTier { tier0: 2 * TOKENS, ..ByTier::default() });
    // A lookup has counted it already.
    w.ok(0, Request::SeqCreate { seq: 2 });
    w.ok(0, Request::AttachPrefix { seq: 2, hashes: &h, asked: None });
    let hits = w.core.hits(0).unwrap();
    assert_eq!((hits.asked_tokens, hits.found_tokens), (3 * TOKENS, 2 * TOKENS));
    assert_eq!(hits.loaded_tokens.total(), 4 * TOKENS);
}

#[test]
fn a_pinned_prefix_stays_and_all_others_go() {
    let mut w = world(4);
    (w.disk.node_slots, w.disk.slab_slots) = (8, 8);
    let a = hashes(1, 2);
    store(&mut w, &a);
    w.event(Event::Pin { hash: a[1], pinned: true }).unwrap();
    let of = |w: &World, i: usize| (entry(w, a[i]).pinned, entry(w, a[i]).ends_pinned);
    assert_eq!((of(&w, 0), of(&w, 1)), ((true, false), (true, true)));
    assert_eq!(w.core.occupancy().pinned, 2);
    (10..40).for_each(|prefix| store(&mut w, &hashes(prefix, 2)));
    assert_eq!(lookup(&mut w, &a, 0, 0), 2, "60 blocks passed through 8 slots");
    w.event(Event::Evict { hash: Some(a[0]) }).unwrap();
    w.event(Event::Evict { hash: None }).unwrap();
    assert_eq!(
        (w.core.occupancy().published, lookup(&mut w, &a, 0, 0)),
        (2, 2),
        "pinned blocks are not evicted by hand"
    );
    w.event(Event::Pin { hash: a[1], pinned: false }).unwrap();
    assert_eq!((of(&w, 0), of(&w, 1)), ((false, false), (false, false)));
    (40..60).for_each(|prefix| store(&mut w, &hashes(prefix, 2)));
    assert_eq!(lookup(&mut w, &a, 0, 0), 0, "evicted like any other");
}

#[test]
fn an_operator_evicts_what_is_idle_with_what_follows() {
    let mut w = world(8);
    let (a, b) = (hashes(1, 4), hashes(2, 2));
    store(&mut w, &a);
    store(&mut w, &b);
    w.ok(1, Request::Lease { seq: 0, hash: b[0], count: 1, lease_us: 1_000_000 });
    w.event(Event::Evict { hash: Some(b[0]) }).unwrap();
    assert_eq!((entry(&w, b[0]).references, entry(&w, b[0]).sessions.len()), (1, 1), "in use");
    assert_eq!(lookup(&mut w, &b, 0, 0), 2);
    w.event(Event::Evict { hash: Some(a[2]) }).unwrap();
    assert_eq!(lookup(&mut w, &a, 0, 0), 2, "the third block and what follows are gone");
    assert_eq!(w.core.counters().evicted_by_hand, 2);
    w.event(Event::Evict { hash: None }).unwrap();
    assert_eq!((lookup(&mut w, &a, 0, 0), lookup(&mut w, &b, 0, 0)), (0, 1), "all but what is leased");
}

#[test]
fn pins_have_a_limit() {
    let max = world(8).core.pinned_max();
    assert_eq!(max, config(vec![full(1000)]).limits.entries_max / 4);
    let mut small = config(vec![full(1000)]);
    small.limits.entries_max = 12;
    let mut w = World::new(small);
    (w.node.frames, w.node.slab_frames) = (vec![8], 8);
    w.attach(0, 1, &[0]);
    let a = hashes(1, 4);
    w.store(0, (0, 0), &a, Level::Published);
    w.event(Event::Pin { hash: a[3], pinned: true }).unwrap();
    assert_eq!((entry(&w, a[3]).pinned, w.core.occupancy().pinned), (false, 0), "4 of at most 3");
    w.event(Event::Pin { hash: a[2], pinned: true }).unwrap();
    w.event(Event::Pin { hash: a[1], pinned: true }).unwrap();
    assert_eq!((entry(&w, a[2]).pinned, w.core.occupancy().pinned), (true, 3));
    w.event(Event::Pin { hash: a[2], pinned: false }).unwrap();
    assert_eq!((entry(&w, a[2]).pinned, entry(&w, a[0]).pinned, w.core.occupancy().pinned), (false, true, 2));
}

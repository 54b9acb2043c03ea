//! The feed of a space, its listing, and reads by hash: what a relay does.

use kvtide_fake::*;
use kvtide_tiering::api::*;
use kvtide_types::FeedEvent as Fed;
use std::collections::{BTreeMap, BTreeSet};

/// The relay's session; sessions 0 and 1 are engines.
const RELAY: SessionId = 2;
/// The feed keeps this number of events.
const KEPT: u64 = 1 << 16;

fn world(host: u32, change: impl FnOnce(&mut SpaceConfig)) -> World {
    let mut cfg = config(vec![full(1000)]);
    (cfg.policy.host_high_percent, cfg.policy.host_low_percent) = (100, 100);
    change(&mut cfg);
    let mut w = World::sized(cfg, (host, host), (64, 64));
    (0..3).for_each(|s| w.attach(s, 1, &[0]));
    w
}

fn store(w: &mut World, s: SessionId, parent: (u32, u128), hashes: &[u128]) -> Vec<Vec<u64>> {
    w.store(s, parent, hashes, Level::Published);
    (0..hashes.len() as u32).map(|block| vec![w.read_engine(s, block, 0).unwrap()]).collect()
}

fn events(list: &[u32]) -> Vec<Fed> {
    list.as_chunks::<{ Fed::WORDS }>().0.iter().map(|&words| Fed::decode(words).unwrap()).collect()
}

/// A reader of the feed, such as a relay: its view of the cached blocks, with their parents, and of those on NVMe.
#[derive(Default)]
struct Reader {
    next: u64,
    cached: BTreeMap<u128, u128>,
    recorded: BTreeSet<u128>,
    used: Vec<(u128, u32)>,
    gaps: u32,
}

impl Reader {
    /// Read all events there are.
    fn read(&mut self, w: &mut World) {
        loop {
            let tag = w.ask(RELAY, Request::Follow { from: self.next });
            w.settle();
            let Some(done) = w.answer(RELAY, tag) else {
                w.ok(RELAY, Request::Cancel { tag });
                return;
            };
            assert_eq!(done.status, Status::Ok);
            self.next = done.value;
            for event in events(&done.list) {
                self.take(w, event);
            }
        }
    }

    fn take(&mut self, w: &mut World, event: Fed) {
        match event {
            Fed::Gap => {
                self.gaps += 1;
                self.list(w);
            }
            Fed::Stored { hash, parent, .. } => {
                assert!(parent == 0 || self.cached.contains_key(&parent), "{hash} came before its parent {parent}");
                self.cached.insert(hash, parent);
            }
            Fed::Recorded { hash } => _ = self.recorded.insert(hash),
            Fed::Removed { hash } => {
                self.cached.remove(&hash);
                self.recorded.remove(&hash);
            }
            Fed::Used { hash, count } => self.used.push((hash, count)),
        }
    }

    fn list(&mut self, w: &mut World) {
        (self.cached, self.recorded) = Default::default();
        let mut cursor = 0;
        loop {
            let done = w.ok(RELAY, Request::ListBlocks { cursor });
            for event in events(&done.list) {
                match event {
                    Fed::Stored { hash, parent, relayed: false } => _ = self.cached.insert(hash, parent),
                    Fed::Recorded { hash } => assert!(self.recorded.insert(hash) && self.cached.contains_key(&hash)),
                    other => panic!("{other:?} in a listing"),
                }
            }
            cursor = done.value;
            if cursor == 0 {
                return;
            }
        }
    }

    fn hashes(&self) -> Vec<u128> {
        self.cached.keys().copied().collect()
    }
}

#[test]
fn a_reader_lists_first_and_then_hears_of_each_change() {
    let mut w = world(8, |cfg| cfg.limits.nvme_bytes_max = 1 << 24);
    store(&mut w, 0, (0, 0), &[1, 2]);
    let mut reader = Reader::default();
    reader.read(&mut w);
    assert_eq!((reader.gaps, reader.hashes()), (1, vec![1, 2]), "earlier blocks are listed");
    store(&mut w, 0, (2, 2), &[3]);
    w.settle();
    w.ok(1, Request::Lease { seq: 0, hash: 3, count: 3, lease_us: 1_000 });
    let tag = w.ask(RELAY, Request::Follow { from: reader.next });
    w.settle();
    let told = w.answer(RELAY, tag).unwrap();
    let stored = Fed::Stored { hash: 3, parent: 2, relayed: false };
    assert_eq!(events(&told.list), [stored, Fed::Recorded { hash: 3 }, Fed::Used { hash: 3, count: 3 }]);
    reader.read(&mut w);
    assert_eq!((reader.hashes(), reader.gaps), (vec![1, 2, 3], 1));
    w.ok(1, Request::SeqDrop { seq: 0 });
    w.event(Event::Evict { hash: Some(2) }).unwrap();
    reader.read(&mut w);
    assert_eq!(reader.hashes(), [1], "the evicted block and the one behind it are gone");
    assert_eq!(reader.recorded, [1].into());
}

#[test]
fn what_a_relay_stores_is_told_as_such_and_a_waiting_reader_hears_at_once() {
    let mut w = world(8, |_| {});
    let mut reader = Reader::default();
    reader.read(&mut w);
    let tag = w.ask(RELAY, Request::Follow { from: reader.next });
    w.settle();
    assert_eq!(w.answer(RELAY, tag), None, "nothing has happened");
    store(&mut w, RELAY, (0, 0), &[7]);
    let told = w.answer(RELAY, tag).expect("the wait ends");
    assert_eq!(events(&told.list), [Fed::Stored { hash: 7, parent: 0, relayed: true }]);
    store(&mut w, 1, (1, 7), &[8]);
    let told = w.ok(RELAY, Request::Follow { from: told.value });
    assert_eq!(events(&told.list), [Fed::Stored { hash: 8, parent: 7, relayed: false }]);
}

#[test]
fn a_wait_ends_at_its_deadline_by_a_cancel_and_with_its_session() {
    let mut w = world(8, |_| {});
    let from = w.ok(RELAY, Request::Follow { from: 0 }).value;
    let tag = w.ask_for(RELAY, Request::Follow { from }, 50);
    w.pass(100);
    assert_eq!(w.answer(RELAY, tag).unwrap().status, Status::TimedOut);
    let tag = w.ask(RELAY, Request::Follow { from });
    w.ok(RELAY, Request::Cancel { tag });
    assert_eq!(w.answer(RELAY, tag).unwrap().status, Status::Canceled);
    w.ask(RELAY, Request::Follow { from });
    w.event(Event::SessionLost { session: RELAY }).unwrap();
    w.settle();
    store(&mut w, 0, (0, 0), &[1]);
    // A session that takes its place knows nothing.
    w.attach(RELAY, 1, &[0]);
    let mut reader = Reader { next: from, ..Reader::default() };
    reader.read(&mut w);
    assert_eq!((reader.gaps, reader.hashes()), (1, vec![1]));
}

/// A gap is never unnoticed: not one event too early, not one too late.
#[test]
fn a_reader_that_is_too_slow_is_told_and_lists_again() {
    let mut w = world(8, |_| {});
    let mut reader = Reader::default();
    reader.read(&mut w);
    let chain: Vec<u128> = (1..=8).collect();
    for (more, gaps) in [(0, 1), (1, 2)] {
        for _ in 0..KEPT / 16 {
            store(&mut w, 0, (0, 0), &chain);
            w.event(Event::Evict { hash: None }).unwrap();
        }
        (0..more).for_each(|_| _ = store(&mut w, 0, (0, 0), &[9]));
        reader.read(&mut w);
        assert_eq!(reader.gaps, gaps, "{more} more events than the feed keeps");
        assert_eq!(reader.cached.len(), more);
    }
}

#[test]
fn a_block_is_told_when_all_shards_have_it() {
    let mut w = world(8, |cfg| cfg.shards = 2);
    w.event(Event::SessionLost { session: 1 }).unwrap();
    w.settle();
    w.attach_shard(1, 1, 1, &[0]).unwrap();
    let mut reader = Reader::default();
    reader.read(&mut w);
    store(&mut w, 0, (0, 0), &[1, 2]);
    reader.read(&mut w);
    assert!(reader.cached.is_empty(), "one shard has its part");
    store(&mut w, 1, (0, 0), &[1]);
    reader.read(&mut w);
    assert_eq!(reader.hashes(), [1]);
    w.event(Event::Evict { hash: None }).unwrap();
    let told = w.ok(RELAY, Request::Follow { from: reader.next });
    assert_eq!(events(&told.list), [Fed::Removed { hash: 1 }], "the other block was never announced");
}

/// Random stores, uses and evictions of three prefixes; the reader reads now and then.
#[test]
fn a_reader_that_reads_now_and_then_knows_what_is_cached() {
    for seed in 1..20u64 {
        let mut w = world(12, |cfg| (cfg.limits.nvme_bytes_max, cfg.limits.entries_max) = (1 << 14, 20));
        let (mut reader, mut state) = (Reader::default(), seed);
        let mut below = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let hash = |prefix: u64, i: u64| u128::from(prefix + 1) << 64 | u128::from(i + 1);
        for _ in 0..300 {
            let (prefix, len) = (below(5), 1 + below(6));
            let chain: Vec<u128> = (0..len).map(|i| hash(prefix, i)).collect();
            match below(8) {
                0..4 => {
                    let tag = w.ask_store(0, (0, 0), &chain, Level::Published, 0);
                    assert!(w.answer(0, tag).is_some(), "a store ends at once");
                }
                4 => {
                    let request = Request::Lease { seq: 0, hash: chain[0], count: 1, lease_us: 1_000_000 };
                    if w.call(1, request).status == Status::Ok {
                        w.ok(1, Request::SeqDrop { seq: 0 });
                    }
                }
                5 => w.event(Event::Evict { hash: Some(chain[0]) }).unwrap(),
                _ => {
                    reader.read(&mut w);
                    for prefix in 0..5 {
                        for hash in (0..6).map(|i| hash(prefix, i)) {
                            let there = w.core.entry(hash).is_some();
                            assert_eq!(reader.cached.contains_key(&hash), there, "seed {seed}, block {hash:x}");
                        }
                    }
                    let (cached, recorded) = (reader.cached.clone(), reader.recorded.clone());
                    reader.list(&mut w);
                    assert_eq!((reader.cached.clone(), reader.recorded.clone()), (cached, recorded), "seed {seed}");
                }
            }
        }
        assert_eq!(reader.gaps, 1, "the reader is fast enough");
    }
}

#[test]
fn blocks_are_read_by_their_hashes_and_nothing_changes() {
    let mut w = world(4, |cfg| cfg.limits.nvme_bytes_max = 1 << 24);
    let cold = store(&mut w, 0, (0, 0), &[1, 2]);
    let hot = store(&mut w, 0, (0, 0), &[11, 12, 13, 14]);
    assert_eq!(w.core.entry(1).unwrap().bytes.host, 0, "the second prefix took its place");
    let before = (w.core.hits(RELAY).unwrap(), w.core.counters().blocks_attached);
    let done = w.call(RELAY, Request::LoadHashed { hashes: &[12, 99, 14], engine: &[5, 6, 7] });
    assert_eq!((done.status, done.value, done.list), (Status::NotFound, 2, vec![1]));
    assert_eq!(w.read_engine(RELAY, 5, 0), Some(hot[1][0]));
    assert_eq!(w.read_engine(RELAY, 7, 0), Some(hot[3][0]));
    assert_eq!((w.core.hits(RELAY).unwrap(), w.core.counters().blocks_attached), before);
    // Blocks on NVMe are read into host memory first, as by a prefetch.
    w.ok(RELAY, Request::LoadHashed { hashes: &[1, 2], engine: &[8, 9] });
    assert_eq!([8, 9].map(|block| w.read_engine(RELAY, block, 0)), [Some(cold[0][0]), Some(cold[1][0])]);
    assert_eq!(w.core.counters().prefetch_used, 0, "it is not a prefetch");
    let invalid =
        [Request::LoadHashed { hashes: &[], engine: &[] }, Request::LoadHashed { hashes: &[1], engine: &[NONE] }];
    invalid.into_iter().for_each(|request| assert_eq!(w.call(RELAY, request).status, Status::Invalid));
}

/// The engine that uses the prefix does not need the pages that left its window; a relay, which keeps the block for any reader,
/// must not take the block without them.
#[test]
fn a_block_without_its_window_pages_is_not_read_by_hash() {
    let mut w = World::new(config(vec![full(1000), Plane { page_bytes: 1000, kind: PlaneKind::Window { tokens: 4 } }]));
    w.attach(0, 1, &[64]);
    w.attach(RELAY, 1, &[0]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    let blocks = w.fill(0, 0, 6, 2);
    let hashes: Vec<u128> = (1..=6).collect();
    w.ok(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &hashes[..1], level: Level::Published });
    w.settle();
    let done = w.call(RELAY, Request::LoadHashed { hashes: &hashes[..1], engine: &[0] });
    assert_eq!((done.status, done.value, done.list), (Status::Lost, 0, vec![0]));
    w.ok(0, Request::Publish { seq: 0, first: 1, parent: 1, hashes: &hashes[1..], level: Level::Published });
    w.ok(RELAY, Request::LoadHashed { hashes: &hashes[5..], engine: &[5] });
    let read = [0, 1].map(|plane| w.read_engine(RELAY, 5, plane));
    assert_eq!(read, [Some(blocks[5].1[0]), Some(blocks[5].1[1])], "the last block is whole");
}

/// An engine leases a block and loads it from NVMe; a relay waits for the same read.
#[test]
fn a_read_by_hash_ends_with_the_read_of_an_engine() {
    let mut w = world(4, |cfg| cfg.limits.nvme_bytes_max = 1 << 24);
    let cold = store(&mut w, 0, (0, 0), &[1, 2]);
    store(&mut w, 0, (0, 0), &[11, 12, 13, 14]);
    assert_eq!(w.core.entry(2).unwrap().bytes.host, 0);
    w.ok(RELAY, Request::Follow { from: 0 });
    w.ok(1, Request::Lease { seq: 0, hash: 2, count: 2, lease_us: 1_000_000 });
    w.eager = false;
    let engine = w.ask(1, Request::LoadBlocks { seq: 0, first: 0, engine: &[5, 6] });
    let relay = w.ask(RELAY, Request::LoadHashed { hashes: &[1, 2], engine: &[8, 9] });
    w.eager = true;
    w.settle();
    assert_eq!(w.answer(1, engine).unwrap().status, Status::Ok);
    assert_eq!(w.answer(RELAY, relay).expect("it is woken").status, Status::Ok);
    assert_eq!([8, 9].map(|block| w.read_engine(RELAY, block, 0)), [Some(cold[0][0]), Some(cold[1][0])]);
}

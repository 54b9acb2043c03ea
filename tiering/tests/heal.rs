//! Partial cached blocks, without pages of windows that have moved on: a shorter prefix cannot be read from them until an engine
//! that has the pages stores or publishes it again.

use kvtide_fake::*;
use kvtide_tiering::api::*;
use std::collections::BTreeMap;

const BLOCKS: u32 = 10;
/// Blocks of a prefix; the long sequence has left its window.
const SHORT: u32 = 4;

/// One engine with pages in the core's tier 0, and one with its own memory. The first has published ten blocks; of the window plane
/// the last two pages remain.
fn world(nvme: bool, seq_lives: bool, level: Level) -> (World, Vec<Vec<u64>>) {
    let mut w = empty(nvme);
    let pages = fill(&mut w);
    w.ok(0, publish(&hashes(BLOCKS), level));
    if !seq_lives {
        w.ok(0, Request::SeqDrop { seq: 0 });
    }
    (w, pages)
}

fn empty(nvme: bool) -> World {
    let mut cfg = config(vec![full(1000), Plane { page_bytes: 500, kind: PlaneKind::Window { tokens: 8 } }]);
    if nvme {
        cfg.limits.nvme_bytes_max = 1 << 24;
    }
    let mut w = World::new(cfg);
    (w.disk.node_slots, w.disk.slab_slots) = (256, 64);
    w.attach(0, 1, &[32, 32]);
    w.attach(1, 1, &[0, 0]);
    w
}

fn fill(w: &mut World) -> Vec<Vec<u64>> {
    w.ok(0, Request::SeqCreate { seq: 0 });
    let pages = w.fill(0, 0, BLOCKS, 2);
    pages.into_iter().map(|(_, contents)| contents).collect()
}

fn publish(hashes: &[u128], level: Level) -> Request<'_> {
    Request::Publish { seq: 0, first: 0, parent: 0, hashes, level }
}

fn restart(w: &mut World) {
    w.restart(vec![1 << 20; 2]);
    w.attach(1, 1, &[0, 0]);
}

fn hashes(count: u32) -> Vec<u128> {
    (1..=u128::from(count)).map(|i| i << 64).collect()
}

fn found(w: &mut World, count: u32) -> u32 {
    w.ok(1, Request::Lookup { hashes: &hashes(count), asked: 0, range: 0 }).value as u32
}

fn lease(w: &mut World, seq: SeqId, count: u32) -> Status {
    let hash = hashes(count)[count as usize - 1];
    w.call(1, Request::Lease { seq, hash, count, lease_us: 1_000_000 }).status
}

/// The second engine computes the prefix again: the same blocks, with different simulated contents.
fn store(w: &mut World, count: u32, level: Level) -> BTreeMap<u32, Vec<u64>> {
    let contents = (0..count).map(|block| (block, w.write_engine(1, block))).collect();
    let engine: Vec<u32> = (0..count).collect();
    let request = Request::StoreBlocks { first: 0, parent: 0, hashes: &hashes(count), engine: &engine, level };
    w.ok(1, request);
    contents
}

/// Lease a prefix, load it, and return the loaded contents.
fn load(w: &mut World, count: u32) -> Vec<[Option<u64>; 2]> {
    assert_eq!(lease(w, 0, count), Status::Ok);
    let engine: Vec<u32> = (1000..1000 + count).collect();
    let memory = &mut w.agents.get_mut(&1).unwrap().engine;
    memory.retain(|&(block, _), _| block < 1000);
    let done = w.ok(1, Request::LoadBlocks { seq: 0, first: 0, engine: &engine });
    assert_eq!(done.value, u64::from(count));
    w.ok(1, Request::SeqDrop { seq: 0 });
    engine.iter().map(|&block| [0, 1].map(|plane| w.read_engine(1, block, plane))).collect()
}

/// The short prefix cannot be leased, is stored, and can be leased then; the long one can be leased at all times.
fn heals(w: &mut World, old: &[Vec<u64>], level: Level) {
    assert_eq!(found(w, BLOCKS), BLOCKS, "its own window is there");
    assert_eq!(lease(w, 1, SHORT), Status::NotFound);
    assert_eq!(found(w, SHORT), 0, "what cannot be leased is not found");
    let new = store(w, SHORT, level);
    assert_eq!(found(w, SHORT), SHORT);
    for (block, loaded) in (0..).zip(load(w, SHORT)) {
        assert_eq!(loaded, [0, 1].map(|plane| Some(new[&block][plane])), "block {block}");
    }
    let full = |block: u32| new.get(&block).unwrap_or(&old[block as usize])[0];
    for (block, loaded) in (0..).zip(load(w, BLOCKS)) {
        assert_eq!(loaded[0], Some(full(block)), "block {block}");
        assert!(loaded[1].is_some() == (block < SHORT || block + 2 >= BLOCKS), "block {block}: {loaded:?}");
    }
    // Storing it once more copies nothing.
    let before = w.core.counters().tier0_to_host.total_pages();
    store(w, SHORT, level);
    assert_eq!(w.core.counters().tier0_to_host.total_pages(), before);
}

#[test]
fn a_store_replaces_what_is_partial() {
    let (mut w, old) = world(false, false, Level::Published);
    heals(&mut w, &old, Level::Published);
}

#[test]
fn a_store_replaces_what_a_sequence_still_reads() {
    let (mut w, old) = world(false, true, Level::Published);
    heals(&mut w, &old, Level::Published);
    let blocks = w.core.occupancy().blocks;
    w.ok(0, Request::SeqDrop { seq: 0 });
    assert_eq!(w.core.occupancy().blocks, blocks - SHORT, "the replaced blocks are free");
    assert_eq!(found(&mut w, BLOCKS), BLOCKS);
}

/// The record would have to be erased first, and a crash between both would lose all descendants.
#[test]
fn what_nvme_has_or_is_to_have_is_not_superseded() {
    for seq_lives in [false, true] {
        for index_only in [false, true] {
            let (mut w, old) = world(true, seq_lives, Level::Stored);
            if index_only {
                restart(&mut w);
            }
            let (slots, copied) = (w.core.occupancy().nvme_slots_used, w.core.counters().tier0_to_host.total_pages());
            store(&mut w, SHORT, Level::Stored);
            assert_eq!(w.core.occupancy().nvme_slots_used, slots);
            assert_eq!(w.core.counters().tier0_to_host.total_pages(), copied, "nothing is copied for nothing");
            restart(&mut w);
            assert_eq!(found(&mut w, BLOCKS), BLOCKS);
            let long = load(&mut w, BLOCKS);
            assert!(long.iter().zip(&old).all(|(loaded, old)| loaded[0] == Some(old[0])));
        }
    }
}

/// The same while the block is being written and a request waits for it.
#[test]
fn what_somebody_waits_for_is_not_superseded() {
    let mut w = empty(true);
    fill(&mut w);
    w.eager = false;
    let tag = w.ask(0, publish(&hashes(SHORT), Level::Stored));
    for block in 0..SHORT {
        w.write_engine(1, block);
    }
    let engine: Vec<u32> = (0..SHORT).collect();
    let (hashes, level) = (hashes(SHORT), Level::Published);
    let stored = w.ask(1, Request::StoreBlocks { first: 0, parent: 0, hashes: &hashes, engine: &engine, level });
    w.eager = true;
    w.settle();
    assert_eq!(w.answer(1, stored).unwrap().status, Status::Ok);
    assert_eq!(w.answer(0, tag).unwrap().status, Status::Ok);
    restart(&mut w);
    assert_eq!((lease(&mut w, 0, SHORT), found(&mut w, SHORT)), (Status::NotFound, 0), "as partial as it was");
}

/// A block only in one engine's tier 0 does not replace one that outlives that engine.
#[test]
fn what_is_below_is_not_superseded_by_what_is_not() {
    let (mut w, _) = world(false, false, Level::Published);
    w.ok(0, Request::SeqCreate { seq: 1 });
    w.fill(0, 1, SHORT, 2);
    w.eager = false;
    let tag =
        w.ask(0, Request::Publish { seq: 1, first: 0, parent: 0, hashes: &hashes(SHORT), level: Level::Published });
    w.settle();
    assert_eq!(w.answer(0, tag).unwrap().status, Status::Ok);
    w.event(Event::SessionLost { session: 0 }).unwrap();
    w.event(Event::SessionExited { session: 0 }).unwrap();
    assert_eq!(found(&mut w, BLOCKS), BLOCKS);
}

/// Of the hashes of one chain, the last one that can be leased counts, whatever precedes it.
#[test]
fn a_probe_whose_window_is_gone_is_passed_over() {
    let (mut w, _) = world(false, false, Level::Published);
    store(&mut w, SHORT, Level::Published);
    for count in 1..=BLOCKS {
        let leased = (1..=count).rev().find(|&n| {
            let ok = lease(&mut w, 1, n) == Status::Ok;
            w.call(1, Request::SeqDrop { seq: 1 });
            ok
        });
        assert_eq!(found(&mut w, count), leased.unwrap_or(0), "{count} probes");
    }
    assert_eq!(found(&mut w, 7), SHORT);
    // If the prefix ends between two hashes, its end must still be found, and may be readable.
    let mut probes = hashes(7);
    probes.push(u128::MAX);
    assert_eq!(w.ok(1, Request::Lookup { hashes: &probes, asked: 0, range: 0 }).value as u32, 7);
}

/// A fault that costs only copies: it makes tests of this file fail.
#[cfg(feature = "mutants")]
#[test]
fn that_a_partial_entry_stays_is_noticed() {
    use kvtide_tiering::mutants::{self, Mutant};
    let tests: [fn(); 2] = [a_store_replaces_what_is_partial, a_store_replaces_what_a_sequence_still_reads];
    for (number, test) in tests.into_iter().enumerate() {
        test();
        mutants::select(Some(Mutant::PartialStays));
        let noticed = std::panic::catch_unwind(test).is_err();
        mutants::select(None);
        assert!(noticed, "test {number}");
    }
}

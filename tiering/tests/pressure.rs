//! Stores faster than the disk: they wait, and no block is dropped unwritten while the disk accepts writes.

use kvtide_fake::*;
use kvtide_tiering::api::*;

const STRIDE: u64 = 1024;

/// One session without tier 0, with `frames` host frames and a disk with room.
fn world(frames: u32, change: impl FnOnce(&mut SpaceConfig)) -> World {
    let mut cfg = config(vec![full(1000)]);
    (cfg.policy.host_high_percent, cfg.policy.host_low_percent) = (100, 100);
    cfg.limits.jobs_max = 64;
    cfg.limits.host_bytes_max = u64::from(frames) * STRIDE;
    cfg.limits.nvme_bytes_max = 1 << 24;
    change(&mut cfg);
    let mut w = World::sized(cfg, (frames, frames), (256, 64));
    w.attach(0, 1, &[0]);
    w.eager = false;
    w
}

fn ask_store(w: &mut World, hashes: &[u128], timeout_us: u64) -> u16 {
    w.ask_store(0, (0, 0), hashes, Level::Published, timeout_us)
}

/// Store a prefix; the disk executes a transfer only when no other event is pending.
fn store(w: &mut World, hashes: &[u128]) -> Done {
    let tag = ask_store(w, hashes, 0);
    while w.answer(0, tag).is_none() {
        assert!(w.run_job(0) || w.run_io(0) || w.run_log_request(0), "the store goes on");
        w.settle();
    }
    w.answer(0, tag).unwrap()
}

#[test]
fn a_store_that_lacks_ids_waits_for_what_is_being_written() {
    let mut w = world(64, |cfg| cfg.limits.blocks_max = 24);
    let prefixes: Vec<_> = (1..=12).map(|prefix| hashes(prefix, 4)).collect();
    for prefix in &prefixes {
        assert_eq!(store(&mut w, prefix).status, Status::Ok);
    }
    for prefix in &prefixes {
        assert_eq!(w.found(0, prefix), 4, "nothing was dropped");
    }
    assert_eq!(w.core.counters().cache_drops, 0);
}

#[test]
fn a_store_keeps_at_its_deadline_what_found_room() {
    let mut w = world(4, |_| {});
    let prefix = hashes(1, 8);
    let tag = ask_store(&mut w, &prefix, 1_000);
    // The disk does not answer.
    while w.run_job(0) {
        w.settle();
    }
    assert_eq!(w.answer(0, tag), None, "it waits for the disk");
    w.pass(1_000);
    let done = w.answer(0, tag).unwrap();
    assert_eq!((done.status, done.value), (Status::NotAdmitted, 4));
    assert_eq!(w.found(0, &prefix), 4);
}

/// Everything that it stores is cached already, but it waits behind a store that needs room.
#[test]
fn a_store_of_cached_blocks_that_is_to_be_durable_ends_at_its_deadline() {
    let mut w = world(4, |_| {});
    let cached = hashes(1, 4);
    let tag = ask_store(&mut w, &cached, 0);
    while w.run_job(0) {
        w.settle();
    }
    assert_eq!(w.answer(0, tag).unwrap().status, Status::Ok);
    ask_store(&mut w, &hashes(2, 8), 1_000_000);
    let engine: Vec<u32> = (0..4).collect();
    let request = Request::StoreBlocks { first: 0, parent: 0, hashes: &cached, engine: &engine, level: Level::Durable };
    let tag = w.ask_for(0, request, 100);
    assert_eq!(w.answer(0, tag), None, "it waits for the disk");
    w.pass(100);
    assert_eq!(w.answer(0, tag).map(|done| done.status), Some(Status::TimedOut));
}

#[test]
fn a_store_without_an_id_at_its_deadline_is_not_admitted() {
    let mut w = world(64, |cfg| cfg.limits.blocks_max = 8);
    let first = hashes(1, 8);
    assert_eq!(store(&mut w, &first).status, Status::Ok);
    let tag = ask_store(&mut w, &hashes(2, 8), 1_000);
    assert_eq!(w.answer(0, tag), None, "it waits for the disk");
    w.pass(1_000);
    assert_eq!(w.answer(0, tag).unwrap().status, Status::NotAdmitted);
    assert_eq!(w.found(0, &first), 8, "published blocks stay");
}

#[test]
fn what_is_asked_for_again_is_written_first() {
    let mut w = world(64, |cfg| cfg.limits.ios_max = 4);
    let (first, second) = (hashes(1, 8), hashes(2, 8));
    for prefix in [&first, &second] {
        let tag = ask_store(&mut w, prefix, 0);
        while w.run_job(0) {
            w.settle();
        }
        assert_eq!(w.answer(0, tag).unwrap().status, Status::Ok);
    }
    let lease = Request::Lease { seq: 0, hash: second[7], count: 8, lease_us: 1_000_000 };
    assert_eq!(w.call(0, lease).status, Status::Ok);
    w.ok(0, Request::SeqDrop { seq: 0 });
    // One more than the second prefix has: one write of the first was in flight.
    let mut written = 0;
    while written < 9 {
        assert!(w.run_io(0));
        written += 1;
        w.settle();
        while w.run_log_request(0) {
            w.settle();
        }
    }
    let recorded: Vec<u128> = w.log.reachable().into_iter().map(|(_, hash)| hash).collect();
    assert!(second.iter().all(|hash| recorded.contains(hash)), "{recorded:x?}");
}

#[test]
fn a_read_that_somebody_waits_for_gets_a_frame_before_stores() {
    let mut w = world(8, |_| {});
    let mine = hashes(1, 4);
    assert_eq!(store(&mut w, &mine).status, Status::Ok);
    // The whole prefix goes to NVMe to make room for others.
    assert_eq!(store(&mut w, &hashes(2, 32)).status, Status::Ok);
    w.attach(1, 1, &[0]);
    let lease = Request::Lease { seq: 0, hash: mine[3], count: 4, lease_us: 1_000_000 };
    assert_eq!(w.call(1, lease).status, Status::Ok);
    // A store that takes every frame as soon as it is free.
    let busy = hashes(3, 64);
    let tag = ask_store(&mut w, &busy, u64::MAX);
    let load = w.ask(1, Request::LoadBlocks { seq: 0, first: 0, engine: &[100, 101, 102, 103] });
    let mut transfers = 0;
    while w.answer(1, load).is_none() {
        assert!(w.run_job(1) || w.run_job(0) || w.run_io(0), "the load goes on");
        w.settle();
        transfers += 1;
    }
    assert_eq!(w.answer(1, load).unwrap().status, Status::Ok);
    assert_eq!(w.answer(0, tag), None, "the store of 64 blocks was not first, after {transfers}");
}

//! Another space needs host memory: slabs of unreferenced cached blocks are returned, least recently used first.

use kvtide_fake::*;
use kvtide_tiering::api::*;

const FRAMES: u32 = 8;

/// Two sessions without tier 0, and three slabs of eight blocks each.
fn world(nvme_blocks: u32) -> World {
    let mut cfg = config(vec![full(4096)]);
    (cfg.policy.host_high_percent, cfg.policy.host_low_percent) = (100, 100);
    cfg.limits.nvme_bytes_max = u64::from(nvme_blocks) * 4096;
    let mut w = World::sized(cfg, (3 * FRAMES, FRAMES), (nvme_blocks, 8));
    w.attach(0, 1, &[0]);
    w.attach(1, 1, &[0]);
    w
}

fn hash(i: u32) -> u128 {
    u128::from(i + 1) << 64
}

/// Store single blocks, each with its own prefix.
fn store(w: &mut World, blocks: std::ops::Range<u32>) {
    for i in blocks {
        w.write_engine(0, i);
        let request =
            Request::StoreBlocks { first: 0, parent: 0, hashes: &[hash(i)], engine: &[i], level: Level::Published };
        assert_eq!(w.call(0, request).status, Status::Ok, "block {i}");
    }
}

fn found(w: &mut World, blocks: std::ops::Range<u32>) -> Vec<u32> {
    blocks
        .filter(|&i| w.ok(1, Request::Lookup { hashes: &[hash(i)], asked: 0, range: 0 }).value & 0xffff == 1)
        .collect()
}

/// Request a slab; return the number of slabs given back.
fn reclaim(w: &mut World, cached: bool) -> usize {
    let before = w.node.returned.len();
    w.event(Event::Reclaim { cached }).unwrap();
    w.node.returned.len() - before
}

fn leave(w: &mut World, session: SessionId) {
    w.agents.remove(&session);
    w.event(Event::SessionLost { session }).unwrap();
    w.event(Event::SessionExited { session }).unwrap();
}

#[test]
fn without_nvme_the_slab_with_the_coldest_entries_goes_first() {
    let mut w = world(0);
    store(&mut w, 0..3 * FRAMES);
    // The second slab is used again: it is the most recently used.
    assert_eq!(found(&mut w, 0..3 * FRAMES).len(), 3 * FRAMES as usize);
    for i in FRAMES..2 * FRAMES {
        w.ok(1, Request::Lease { seq: 0, hash: hash(i), count: 1, lease_us: 1_000_000 });
        w.ok(1, Request::SeqDrop { seq: 0 });
    }
    assert_eq!(reclaim(&mut w, false), 0, "no slab is idle");
    assert_eq!(reclaim(&mut w, true), 1);
    assert_eq!(found(&mut w, 0..3 * FRAMES), (FRAMES..3 * FRAMES).collect::<Vec<_>>());
    assert_eq!(reclaim(&mut w, true), 1);
    assert_eq!(found(&mut w, 0..3 * FRAMES), (FRAMES..2 * FRAMES).collect::<Vec<_>>());
    assert!(!w.core.is_reclaiming());
}

#[test]
fn entries_that_nvme_holds_stay_findable_and_a_space_without_sessions_keeps_nothing() {
    let mut w = world(64);
    store(&mut w, 0..3 * FRAMES);
    let before: Vec<_> = (0..3 * FRAMES).map(|i| w.read_engine(0, i, 0)).collect();
    assert_eq!(w.log.records.len(), 3 * FRAMES as usize, "all is recorded");
    leave(&mut w, 0);
    leave(&mut w, 1);
    assert_eq!((0..4).map(|_| reclaim(&mut w, true)).collect::<Vec<_>>(), [1, 1, 1, 0]);
    w.attach(1, 1, &[0]);
    w.node.frames = vec![FRAMES];
    assert_eq!(found(&mut w, 0..3 * FRAMES).len(), 3 * FRAMES as usize);
    for i in 0..3 * FRAMES {
        w.ok(1, Request::Lease { seq: 0, hash: hash(i), count: 1, lease_us: 1_000_000 });
        w.ok(1, Request::LoadBlocks { seq: 0, first: 0, engine: &[i] });
        w.ok(1, Request::SeqDrop { seq: 0 });
        assert_eq!(w.read_engine(1, i, 0), before[i as usize], "block {i}");
    }
}

/// The memory of full spaces is often in use at the moment of the first question.
#[test]
fn a_lease_of_a_new_space_waits_until_the_node_is_asked_again_and_no_longer() {
    let lease = Request::Lease { seq: 0, hash: hash(0), count: 1, lease_us: 1_000_000 };
    for (has_room, status) in [(true, Status::Ok), (false, Status::NoSpace)] {
        let mut w = world(64);
        store(&mut w, 0..FRAMES);
        leave(&mut w, 0);
        leave(&mut w, 1);
        while reclaim(&mut w, true) == 1 {}
        w.attach(1, 1, &[0]);
        w.node.frames = vec![0];
        let asked = w.ask(1, lease);
        assert_eq!(w.answer(1, asked), None, "the node has refused once");
        w.node.frames = vec![if has_room { FRAMES } else { 0 }];
        w.now = w.core.next_deadline().unwrap();
        w.event(Event::Tick).unwrap();
        w.settle();
        assert_eq!(w.answer(1, asked).map(|done| done.status), Some(status), "room: {has_room}");
        if !has_room {
            assert_eq!(w.call(1, lease).status, Status::NoSpace, "from now on at once");
        }
    }
}

#[test]
fn what_a_sequence_uses_keeps_its_slab() {
    let mut w = world(0);
    store(&mut w, 0..3 * FRAMES);
    for (seq, i) in [(0, 1), (1, FRAMES + 1), (2, 2 * FRAMES + 1)] {
        w.ok(1, Request::Lease { seq, hash: hash(i), count: 1, lease_us: 1_000_000 });
    }
    assert_eq!(reclaim(&mut w, true), 0);
    w.ok(1, Request::SeqDrop { seq: 1 });
    assert_eq!(reclaim(&mut w, true), 1);
    let left: Vec<u32> = (0..3 * FRAMES).filter(|i| !(FRAMES..2 * FRAMES).contains(i)).collect();
    assert_eq!(found(&mut w, 0..3 * FRAMES), left);
}

#[test]
fn blocks_on_their_way_to_nvme_are_awaited_and_dropped_when_that_takes_too_long() {
    for hangs in [false, true] {
        let mut w = world(64);
        store(&mut w, 0..2 * FRAMES);
        w.eager = false;
        for i in 2 * FRAMES..3 * FRAMES {
            w.write_engine(0, i);
            let (first, parent, hashes, engine) = (0, 0, &[hash(i)][..], &[i][..]);
            w.ask(0, Request::StoreBlocks { first, parent, hashes, engine, level: Level::Published });
            while w.run_job(0) {
                w.settle();
            }
        }
        // Two slabs are returned at once: NVMe holds their blocks.
        leave(&mut w, 0);
        leave(&mut w, 1);
        assert_eq!((reclaim(&mut w, true), reclaim(&mut w, true), reclaim(&mut w, true)), (1, 1, 0));
        assert!(w.core.is_reclaiming(), "the third waits for its writes");
        if !hangs {
            w.eager = true;
            w.settle();
        }
        let began = w.now;
        while w.core.is_reclaiming() {
            assert!(w.now < began + 1_000_000, "a wait without an end");
            w.now = w.core.next_deadline().expect("another look");
            w.event(Event::Tick).unwrap();
        }
        w.attach(1, 1, &[0]);
        let (given, kept) = (w.node.returned.len(), found(&mut w, 0..3 * FRAMES).len() as u32);
        // Writes still at the device at the deadline keep their frames.
        let expected = if hangs { (2, 2 * FRAMES) } else { (3, 3 * FRAMES) };
        assert!(given == expected.0 && kept >= expected.1, "hangs {hangs}: {given} slabs given, {kept} blocks kept");
    }
}

#[test]
fn a_slab_of_many_frames_is_emptied_in_slices_and_hands_none_out_meanwhile() {
    const MANY: u32 = 1_200;
    let mut cfg = config(vec![full(4096)]);
    (cfg.limits.blocks_max, cfg.limits.entries_max, cfg.limits.seq_blocks_max) = (2 * MANY, 2 * MANY, 2 * MANY);
    (cfg.policy.host_high_percent, cfg.policy.host_low_percent) = (100, 100);
    let mut w = World::new(cfg);
    (w.node.frames, w.node.slab_frames) = (vec![MANY], MANY);
    w.attach(0, 1, &[0]);
    w.attach(1, 1, &[0]);
    store(&mut w, 0..MANY - 10);
    let mut buf = kvtide_tiering::ActionBuf::new(64, 1024);
    w.core.handle(w.now, Event::Reclaim { cached: true }, &mut buf).unwrap();
    let first = found_now(&w);
    assert!(first > MANY / 4 && w.core.has_output(), "{first} blocks are left after one call");
    // A store that starts now finds no frame there; the node has none either.
    w.write_engine(0, 0);
    let request = Request::StoreBlocks { first: 0, parent: 0, hashes: &[7], engine: &[0], level: Level::Published };
    let tag = w.ask(0, request);
    w.settle();
    assert_eq!(w.answer(0, tag).unwrap().status, Status::NoSpace);
    assert_eq!((w.node.returned.len(), found_now(&w)), (1, 0));
}

fn found_now(w: &World) -> u32 {
    w.core.occupancy().published
}

/// A reserve without any host memory requests no NVMe space: slots need host frames to stream pages through.
#[test]
fn a_reserve_without_host_memory_takes_no_nvme_space() {
    let mut w = world(1 << 20);
    (w.node.frames, w.rates) = (vec![0], true);
    w.attach(2, 1, &[8]);
    w.ok(2, Request::SeqCreate { seq: 0 });
    w.fill(2, 0, 4, 1);
    let tag = w.ask(2, Request::Reserve { seq: 0, count: 1 });
    assert_eq!(w.answer(2, tag).map(|done| done.status), Some(Status::NoSpace));
    assert_eq!(w.disk.granted, 0, "NVMe regions were taken");
}

/// A request that waits for several NVMe regions returns none of them meanwhile, although each grant changes the write budget.
#[test]
fn a_store_that_waits_for_nvme_space_gives_none_back() {
    let mut w = world(1 << 20);
    (w.node.frames, w.rates, w.disk.node_slots) = (vec![FRAMES], true, 1 << 20);
    w.store(0, (0, 0), &(0..64).map(hash).collect::<Vec<_>>(), Level::Published);
    assert_eq!(found(&mut w, 0..1).len(), 1);
    assert!(w.disk.granted <= 9, "{} regions were granted", w.disk.granted);
}

//! Engines with agents that never end their copies, and engines that lease the whole cache: other engines continue.

use kvtide_fake::*;
use kvtide_tiering::api::*;

const FRAMES: u32 = 16;
const STRIDE: u64 = 1024;

/// Two sessions without tier 0. The test itself runs the jobs of session 0's agent.
fn world(change: impl FnOnce(&mut SpaceConfig)) -> World {
    let mut cfg = config(vec![full(1000)]);
    (cfg.policy.host_high_percent, cfg.policy.host_low_percent) = (100, 100);
    cfg.limits.jobs_max = 64;
    cfg.limits.host_bytes_max = u64::from(FRAMES) * STRIDE;
    change(&mut cfg);
    let mut w = World::new(cfg);
    (w.node.frames, w.node.slab_frames) = (vec![FRAMES], FRAMES);
    w.attach(0, 1, &[0]);
    w.attach(1, 1, &[0]);
    w.eager = false;
    w
}

fn nvme(cfg: &mut SpaceConfig) {
    cfg.limits.nvme_bytes_max = 1 << 24;
}

/// Request a store without running its jobs.
fn ask_store(w: &mut World, s: SessionId, hashes: &[u128], timeout_us: u64) -> u16 {
    w.ask_store(s, (0, 0), hashes, Level::Published, timeout_us)
}

/// Run session 1's jobs, and the disk, until its request has ended.
fn run(w: &mut World, tag: u16) -> Done {
    while w.answer(1, tag).is_none() {
        assert!(w.run_job(1) | w.run_io(0), "the request goes on");
        w.settle();
    }
    w.answer(1, tag).unwrap()
}

fn store(w: &mut World, hashes: &[u128]) -> Status {
    let tag = ask_store(w, 1, hashes, 0);
    run(w, tag).status
}

/// Lease and load a prefix; every block must hold the contents that session 1 stored from its own block of the same number.
fn load(w: &mut World, hashes: &[u128], stored: &[u64]) -> Status {
    let count = hashes.len() as u32;
    let lease = Request::Lease { seq: 0, hash: *hashes.last().unwrap(), count, lease_us: 1_000_000 };
    assert_eq!(w.call(1, lease).status, Status::Ok);
    let engine: Vec<u32> = (100..100 + count).collect();
    let tag = w.ask(1, Request::LoadBlocks { seq: 0, first: 0, engine: &engine });
    let done = run(w, tag);
    if done.status == Status::Ok {
        let got: Vec<u64> = engine.iter().map(|&block| w.agents[&1].engine[&(block, 0)]).collect();
        assert_eq!(got, stored, "every block has the stored bytes");
    }
    w.ok(1, Request::SeqDrop { seq: 0 });
    done.status
}

fn contents(w: &World, count: u32) -> Vec<u64> {
    (0..count).map(|block| w.agents[&1].engine[&(block, 0)]).collect()
}

/// An engine's copies take only a part of host memory, however many it requests: another engine loads from NVMe meanwhile.
#[test]
fn copies_that_never_end_leave_room_for_another_engines_load() {
    let mut w = world(nvme);
    (w.disk.node_slots, w.disk.slab_slots) = (256, 64);
    let mine = hashes(1, 8);
    assert_eq!(store(&mut w, &mine), Status::Ok);
    let stored = contents(&w, 8);
    // The whole prefix goes to NVMe to make room for this one.
    assert_eq!(store(&mut w, &hashes(2, 16)), Status::Ok);
    // Practically without a deadline.
    ask_store(&mut w, 0, &hashes(3, 64), u64::MAX);
    assert!(!w.agents[&0].jobs.is_empty(), "its copies are under way");
    assert_eq!(load(&mut w, &mine, &stored), Status::Ok);
}

/// At its deadline a store frees the frames of blocks that it has not copied. The bytes of late copies are in no block.
#[test]
fn a_store_holds_nothing_for_others_past_its_deadline() {
    let mut w = world(|_| {});
    let theirs = hashes(3, 14);
    let tag = ask_store(&mut w, 0, &theirs, 1_000);
    let mine = hashes(1, 8);
    assert_eq!(store(&mut w, &mine), Status::NoSpace, "the room is committed to the other store");
    w.pass(1_000);
    assert_eq!(w.answer(0, tag), None, "its engine may not use its blocks again yet");
    assert_eq!(store(&mut w, &mine), Status::Ok);
    let stored = contents(&w, 8);
    // More than fits beside the frames that the late copies may still write.
    let in_flight = w.agents[&0].jobs.len() as u32;
    assert!(in_flight > 0 && w.core.counters().quarantined == u64::from(in_flight), "{in_flight} copies are late");
    let rest = hashes(4, u128::from(FRAMES - 8));
    let tag_of_rest = ask_store(&mut w, 1, &rest, 0);
    run(&mut w, tag_of_rest);
    // The copies now succeed, into quarantined frames.
    while w.run_job(0) {}
    w.settle();
    let done = w.answer(0, tag).unwrap();
    assert_eq!((done.status, done.list.len()), (Status::TimedOut, 14));
    assert_eq!(w.core.counters().quarantined, 0);
    assert_eq!(w.found(1, &theirs), 0);
    if w.found(1, &mine) == 8 {
        assert_eq!(load(&mut w, &mine, &stored), Status::Ok);
    }
    assert_eq!(store(&mut w, &hashes(5, u128::from(FRAMES))), Status::Ok, "every frame is there again");
}

/// A request without a deadline and a canceled one hold their resources no longer either.
#[test]
fn no_deadline_and_no_cancel_makes_a_hold_last() {
    for cancels in [false, true] {
        let mut w = world(|_| {});
        let tag = ask_store(&mut w, 0, &hashes(3, 14), u64::MAX);
        if cancels {
            w.ok(0, Request::Cancel { tag });
        }
        assert_eq!(store(&mut w, &hashes(1, 8)), Status::NoSpace, "its copies may end yet");
        w.pass(5_000_000);
        assert_eq!(store(&mut w, &hashes(1, 8)), Status::Ok);
        while w.run_job(0) {}
        w.settle();
        let status = if cancels { Status::Canceled } else { Status::TimedOut };
        assert_eq!(w.answer(0, tag).unwrap().status, status);
    }
}

/// A load with late copies: its lease ends and its blocks can be evicted; the frames stay in quarantine until the copies end.
#[test]
fn a_load_holds_nothing_for_others_past_its_deadline() {
    let mut w = world(|cfg| cfg.policy.lease_percent = 100);
    let mine = hashes(1, 16);
    assert_eq!(store(&mut w, &mine), Status::Ok);
    w.ok(0, Request::Lease { seq: 0, hash: mine[7], count: 8, lease_us: 2_000 });
    let engine: Vec<u32> = (0..8).collect();
    let tag = w.ask_for(0, Request::LoadBlocks { seq: 0, first: 0, engine: &engine }, 1_000);
    let in_flight = w.agents[&0].jobs.len() as u64;
    w.pass(1_000);
    assert_eq!(w.core.counters().quarantined, 0, "the content is still there");
    w.pass(11_000);
    let next = hashes(2, 12);
    assert_eq!(store(&mut w, &next), Status::Ok, "the lease has ended, and its blocks are evicted");
    let stored = contents(&w, 12);
    assert_eq!(w.answer(0, tag), None);
    // Frames that the late copies read were not given to the new blocks.
    while w.run_job(0) {}
    w.settle();
    let done = w.answer(0, tag).unwrap();
    assert_eq!(done.status, Status::TimedOut);
    assert!(done.list.len() as u64 >= in_flight, "late copies count as failed");
    assert_eq!(load(&mut w, &next, &stored), Status::Ok);
}

/// A session ends when its late copies reach the limit of copies in flight; other sessions continue.
#[test]
fn a_session_ends_when_its_late_copies_hold_too_much() {
    let mut w = world(|_| {});
    ask_store(&mut w, 0, &hashes(3, 8), 1_000);
    assert!(w.overdrawn.is_empty());
    w.pass(1_000);
    assert_eq!(w.overdrawn, [0]);
    w.event(Event::SessionLost { session: 0 }).unwrap();
    w.agents.remove(&0);
    assert!(w.gone.is_empty(), "its process may still write");
    assert!(w.core.counters().quarantined > 0);
    assert_eq!(store(&mut w, &hashes(1, 8)), Status::Ok);
    w.event(Event::SessionExited { session: 0 }).unwrap();
    assert_eq!((w.gone.clone(), w.core.counters().quarantined), (vec![0], 0));
    assert_eq!(store(&mut w, &hashes(2, u128::from(FRAMES))), Status::Ok, "every frame is there again");
}

/// A request that finds no room waits for a process that is about to exit, and not for one that lives on.
#[test]
fn nobody_waits_long_for_a_lost_sessions_process() {
    let mut w = world(|_| {});
    ask_store(&mut w, 0, &hashes(3, 8), 0);
    w.event(Event::SessionLost { session: 0 }).unwrap();
    w.agents.remove(&0);
    let tag = ask_store(&mut w, 1, &hashes(1, u128::from(FRAMES)), 60_000_000);
    assert_eq!(w.answer(1, tag), None, "it may exit soon");
    w.pass(5_000_000);
    assert_eq!(w.answer(1, tag).unwrap().status, Status::NoSpace);
}

/// The only host frame is in quarantine. A park and a publish wait for it as long as the lost session's process may exit soon.
#[test]
fn parks_and_publishes_wait_for_a_lost_sessions_process_and_not_for_long() {
    for exits in [true, false] {
        let mut w = world(|cfg| {
            nvme(cfg);
            cfg.limits.host_bytes_max = STRIDE;
        });
        (w.node.frames, w.node.slab_frames) = (vec![1], 1);
        (w.disk.node_slots, w.disk.slab_slots) = (256, 64);
        w.attach(2, 1, &[8]);
        w.eager = true;
        w.ok(2, Request::SeqCreate { seq: 0 });
        w.fill(2, 0, 1, 1);
        w.ok(2, Request::SeqCreate { seq: 1 });
        let block = w.ok(2, Request::Reserve { seq: 1, count: 1 }).list[0];
        w.write(2, block, 0);
        w.ok(2, Request::Commit { seq: 1, tokens: 1 });
        w.eager = false;
        ask_store(&mut w, 0, &hashes(3, 1), u64::MAX);
        assert_eq!(w.agents[&0].jobs.len(), 1, "its copy may write the frame");
        w.event(Event::SessionLost { session: 0 }).unwrap();
        w.agents.remove(&0);
        w.eager = true;
        let hashes = hashes(5, 1);
        let publish = Request::Publish { seq: 0, first: 0, parent: 0, hashes: &hashes, level: Level::Stored };
        let tags = [w.ask_for(2, publish, 60_000_000), w.ask_for(2, Request::Park { seq: 1, due_us: 0 }, 60_000_000)];
        let answers = |w: &World| tags.map(|tag| w.answer(2, tag).map(|done| done.status));
        assert_eq!(answers(&w), [None, None], "the process may exit soon");
        match exits {
            true => w.event(Event::SessionExited { session: 0 }).unwrap(),
            false => w.pass(5_000_000),
        }
        let expected = if exits { Status::Ok } else { Status::NoSpace };
        assert_eq!(answers(&w), [Some(expected); 2], "{exits}");
    }
}

#[test]
fn a_lease_longer_than_the_longest_is_refused() {
    let mut w = world(|cfg| cfg.policy.lease_us_max = 1_000);
    let mine = hashes(1, 4);
    assert_eq!(store(&mut w, &mine), Status::Ok);
    let lease = |lease_us| Request::Lease { seq: 0, hash: mine[3], count: 4, lease_us };
    for longer in [1_001, u64::MAX] {
        let done = w.call(1, lease(longer));
        assert_eq!((done.status, done.value), (Status::Limit, 1_000));
    }
    w.ok(1, lease(1_000));
    w.ok(1, Request::SeqDrop { seq: 0 });
    let policy = Policy { lease_us_max: 999, ..w.core.config().policy };
    w.event(Event::Reconfigure { policy, host_bytes_max: u64::from(FRAMES) * STRIDE, nvme_bytes_max: 0 }).unwrap();
    assert_eq!(w.call(1, lease(1_000)).status, Status::Limit);
}

/// One limit applies to the leases of all sessions together; each block counts once. A session that is alone may lease everything.
#[test]
fn leases_have_a_share() {
    let mut w = world(|_| {});
    let mine = hashes(1, u128::from(FRAMES));
    assert_eq!(store(&mut w, &mine), Status::Ok);
    let lease = |seq, count: u32| Request::Lease { seq, hash: mine[count as usize - 1], count, lease_us: 1_000 };
    let share = FRAMES / 2;
    let done = w.call(1, lease(0, share + 1));
    assert_eq!((done.status, done.value), (Status::Limit, (1 << 63) | (u64::from(share) * STRIDE)));
    w.ok(1, lease(0, share - 2));
    w.ok(1, lease(1, 2));
    w.ok(1, lease(2, share));
    assert_eq!(
        w.call(1, lease(3, share + 1)).status,
        Status::Limit,
        "a block is held once, however many leases it has"
    );
    w.ok(0, lease(0, share));
    let more = w.call(0, lease(1, share + 1));
    assert_eq!((more.status, more.value), (done.status, done.value), "one share for both sessions");
    w.ok(0, Request::SeqDrop { seq: 0 });
    // The other session may store into the other half of the room.
    let tag = ask_store(&mut w, 0, &hashes(2, u128::from(share)), 0);
    w.eager = true;
    w.settle();
    assert_eq!(w.answer(0, tag).unwrap().status, Status::Ok);
    w.event(Event::SessionLost { session: 0 }).unwrap();
    w.agents.remove(&0);
    [0, 1, 2].into_iter().for_each(|seq| _ = w.ok(1, Request::SeqDrop { seq }));
    let all = w.found(1, &mine) as u32;
    assert!(all > 0);
    w.ok(1, lease(3, all));
}

/// With everything leased, another engine's store fails soon, for every reason why NVMe takes no block.
#[test]
fn a_store_does_not_wait_for_leases() {
    for (with_nvme, slots, admission, bytes_per_day) in [
        (false, 0, Admission::All, 0),
        (true, 0, Admission::All, 0),
        (true, 8, Admission::All, 0),
        (true, 16, Admission::All, 0),
        (true, 20, Admission::All, 0),
        (true, 64, Admission::All, 0),
        (true, 64, Admission::SecondTouch, 0),
        (true, 64, Admission::Budget, 1),
        (true, 64, Admission::All, 1),
    ] {
        let case = (with_nvme, slots, admission, bytes_per_day);
        let mut w = world(|cfg| {
            cfg.policy.lease_percent = 100;
            (cfg.policy.nvme_admission, cfg.policy.nvme_bytes_per_day) = (admission, bytes_per_day);
            if with_nvme {
                nvme(cfg);
            }
        });
        (w.disk.node_slots, w.disk.slab_slots) = (slots, 8);
        let mine = hashes(1, u128::from(FRAMES) - 2);
        assert_eq!(store(&mut w, &mine), Status::Ok);
        let count = w.found(1, &mine) as u32;
        w.ok(1, Request::Lease { seq: 0, hash: mine[count as usize - 1], count, lease_us: 600_000_000 });
        let tag = ask_store(&mut w, 0, &hashes(2, 8), 60_000_000);
        w.eager = true;
        w.settle();
        for _ in 0..20 {
            w.pass(100_000);
        }
        let done = w.answer(0, tag).unwrap_or_else(|| panic!("{case:?}: it waits for leases"));
        println!("{case:?}: {count} leased, {:?}", done.status);
        // Blocks that are also on NVMe can be evicted from host.
        let fits = matches!(done.status, Status::Ok if slots > 0);
        assert!(fits || done.status == Status::NoSpace, "{case:?}: {:?}", done.status);
    }
}

/// An engine leases more blocks than NVMe has slots and than one scan of pending blocks covers. Another engine's store with level
/// `Stored` fails with `NoSpace`.
#[test]
fn a_store_that_is_to_be_kept_does_not_wait_for_leases() {
    let mut w = world(|cfg| {
        nvme(cfg);
        (cfg.policy.lease_percent, cfg.policy.nvme_admission) = (100, Admission::SecondTouch);
        cfg.limits.host_bytes_max = 192 * STRIDE;
    });
    (w.node.frames, w.node.slab_frames) = (vec![192], 192);
    (w.disk.node_slots, w.disk.slab_slots) = (8, 8);
    let mine = hashes(1, 100);
    assert_eq!(store(&mut w, &mine), Status::Ok);
    // From then on the prefix must be written, and it cannot be evicted.
    let lease = Request::Lease { seq: 0, hash: mine[99], count: 100, lease_us: 600_000_000 };
    w.ok(1, lease);
    w.eager = true;
    w.settle();
    assert_eq!(w.core.occupancy().nvme_slots_used, 8);
    let theirs = hashes(2, 4);
    let tag = w.ask_store(0, (0, 0), &theirs, Level::Stored, 60_000_000);
    let done = w.answer(0, tag).expect("it waits for no lease");
    assert_eq!((done.status, done.value), (Status::NoSpace, Level::Published as u64));
    assert_eq!(w.found(1, &theirs), 4);
}

//! A flight recording replays to the same actions, also after its ring has wrapped.

use kvtide_fake::*;
use kvtide_tiering::api::*;
use kvtide_tiering::{Error, Recording};

fn life(bytes_max: usize) -> World {
    let mut w = World::new(config(vec![full(1000), full(600)]));
    w.record(bytes_max);
    w.attach(0, 1, &[10, 10]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    let pages = w.fill(0, 0, 20, 2);
    w.ok(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &[1, 2 << 90, 3], level: Level::Published });
    w.ok(0, Request::Advise { seq: 0, first: 0, count: 3, advice: Advice::Priority(9) });
    w.ok(0, Request::Contract { seq: 0, contract: Contract::Approx { permille: 250 } });
    for (kind, index) in [(ScoreKind::Ahead, 1), (ScoreKind::Mass, 1 << 30)] {
        let top = &[(0, 0xfc00), (index, 0xbc00)];
        w.event(Event::Scores { session: 0, seq: 0, plane: 1, step: 1 << 40, kind, rest: 0x8000, top }).unwrap();
    }
    assert_eq!((w.core.counters().scores, w.core.counters().scores_refused), (1, 1));
    let policy = config(Vec::new()).policy;
    let policy = Policy { clean_low_percent: 60, clean_high_percent: 90, ..policy };
    w.event(Event::Reconfigure { policy, host_bytes_max: 1 << 20, nvme_bytes_max: 0 }).unwrap();
    w.ok(0, Request::Fork { parent: 0, child: 1 });
    for step in 1..60 {
        w.step(0, 0, step, 0, &pages, 2);
    }
    w.ok(0, Request::SeqDrop { seq: 0 });
    assert_eq!(w.call(0, Request::Commit { seq: 0, tokens: u64::MAX }).status, Status::NotFound);
    w.event(Event::JobDone { session: 0, job: 77, status: Status::Ok }).unwrap_err();
    w.ok(0, Request::SeqCreate { seq: 2 });
    w.ok(0, Request::AttachPrefix { seq: 2, hashes: &[1, 2 << 90, 9], asked: Some(0) });
    w
}

#[test]
fn a_recording_replays_to_the_same_actions() {
    for bytes_max in [0, 20_000, 1 << 20] {
        let w = life(bytes_max);
        let dump = w.dump();
        let recording = Recording::load(&dump).unwrap();
        let mut inputs = 0;
        let core = recording.replay(|_, core, _| {
            core.check().unwrap();
            inputs += 1;
        });
        let core = core.unwrap();
        assert_eq!(core.trace(), w.core.trace(), "{bytes_max} bytes");
        assert_eq!((core.trace(), core.counters()), (recording.end(), w.core.counters()));
        assert_eq!(inputs, w.recorder.as_ref().unwrap().inputs());
        assert_eq!(dump, w.dump());
    }
    assert!(
        life(0).recorder.unwrap().inputs() < life(1 << 20).recorder.unwrap().inputs(),
        "the small ring has wrapped"
    );
}

/// Grants of slots, transfers, failures and bad pages are recorded like other inputs.
#[test]
fn a_recording_over_three_tiers_replays() {
    let mut cfg = config(vec![full(1000), full(600)]);
    cfg.limits.nvme_bytes_max = 1 << 20;
    let mut w = World::new(cfg);
    w.node.frames = vec![12, 12];
    w.node.slab_frames = 6;
    (w.disk.node_slots, w.disk.slab_slots) = (30, 7);
    w.record(1 << 20);
    w.attach(0, 1, &[10, 10]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    let pages = w.fill(0, 0, 24, 2);
    for step in 1..4 {
        w.step(0, 0, step, 0, &pages, 2);
    }
    w.disk.fail_next.extend([Status::Io, Status::TimedOut, Status::Ok]);
    w.disk.rotten = w.disk.pages.keys().copied().filter(|k| k.1 == 0 && k.2 == 0).collect();
    for index in 0..24 {
        let tag = w.ask(0, Request::Fault { lane: 0, use_pos: 0, seq: 0, index, plane: 0, whole: false });
        while w.answer(0, tag).is_none() {
            w.now = w.core.next_deadline().expect("a fault has a deadline");
            w.event(Event::Tick).unwrap();
        }
    }
    assert!(w.core.counters().checksum_failed > 0 && w.core.counters().io_failed > 0);
    let core = Recording::load(&w.dump()).unwrap().replay(|_, core, _| core.check().unwrap()).unwrap();
    assert_eq!((core.trace(), core.counters()), (w.core.trace(), w.core.counters()));
}

#[test]
fn damaged_recordings_are_refused() {
    let dump = life(1 << 20).dump();
    for cut in [0, 5, 8, 100, dump.len() - 1] {
        let refused = Recording::load(&dump[..cut]).and_then(|r| r.replay(|_, _, _| {}).map(|_| ()));
        assert!(matches!(refused, Err(Error::Recording { .. })), "cut at {cut}");
    }
}

/// Blocks of an earlier run, and lost disks, are recorded like other inputs.
#[test]
fn a_recording_of_a_warm_start_replays() {
    let mut cfg = config(vec![full(1000), full(600)]);
    cfg.limits.nvme_bytes_max = 1 << 20;
    let mut w = World::new(cfg);
    w.record(1 << 20);
    for slab in 0..2 {
        w.disk.slabs.insert(slab, 4);
        w.event(Event::DiskAdopted { slab, slots: 4, disk: slab as u16, generation: 1 << 16 }).unwrap();
    }
    for (slot, hash) in (0..4).zip(1u128..) {
        let (at, parent) = (DiskSlot { slab: slot / 2, slot, generation: 77 + slot }, (hash - 1) << 100 | (hash - 1));
        w.event(Event::Restored { at, shard: 0, hash: hash << 100 | hash, parent, planes: &[3] }).unwrap();
    }
    let unknown = DiskSlot { slab: 0, slot: 3, generation: 5 };
    w.event(Event::Restored { at: unknown, shard: 0, hash: 99, parent: 98, planes: &[3] }).unwrap();
    assert_eq!((w.core.counters().restored, w.core.counters().restore_refused, w.log.erased), (4, 1, 1));
    w.kill_disk(1);
    assert_eq!((w.core.occupancy().published, w.core.counters().entries_gone), (2, 1));
    let recording = Recording::load(&w.dump()).unwrap();
    let core = recording.replay(|_, core, _| core.check().unwrap()).unwrap();
    assert_eq!((core.trace(), core.counters()), (w.core.trace(), w.core.counters()));
}

//! Published blocks are persisted on NVMe as requested, found again after a restart, and lost with their disk.

use kvtide_fake::*;
use kvtide_tiering::api::*;
use std::collections::BTreeSet;

const PAGE: u64 = 4096;

/// Two planes over three tiers; disks hold `slots` blocks.
fn world(host: u32, slots: u32, change: impl Fn(&mut SpaceConfig)) -> World {
    let mut cfg = config(vec![full(PAGE as u32); 2]);
    cfg.limits.host_bytes_max = u64::from(host) * PAGE;
    cfg.limits.nvme_bytes_max = u64::from(slots) * 2 * PAGE;
    change(&mut cfg);
    let mut w = World::sized(cfg, (host, host), (slots, 4));
    begin(&mut w);
    w
}

fn begin(w: &mut World) {
    w.attach(0, 1, &[16]);
    w.ok(0, Request::SeqCreate { seq: 0 });
}

fn hashes(from: u128, count: u128) -> Vec<u128> {
    (from..from + count).map(|i| i << 70 | i).collect()
}

fn ask(w: &mut World, h: &[u128], level: Level) -> u16 {
    w.ask(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: h, level })
}

fn drop_and_attach(w: &mut World, h: &[u128]) -> Done {
    w.call(0, Request::SeqDrop { seq: 0 });
    w.ok(0, Request::SeqCreate { seq: 0 });
    w.ok(0, Request::AttachPrefix { seq: 0, hashes: h, asked: Some(0) })
}

/// Read every page of the sequence through faults.
fn check(w: &mut World, blocks: &[u32], pages: &[(BlockId, Vec<u64>)]) {
    for (index, (&block, (_, contents))) in (0u32..).zip(blocks.iter().zip(pages)) {
        for plane in 0..contents.len() as u16 {
            if w.read(0, block, plane).is_none() {
                w.ok(0, Request::Fault { lane: 0, use_pos: 0, seq: 0, index, plane, whole: false });
            }
            assert_eq!(w.read(0, block, plane), Some(contents[usize::from(plane)]), "block {index} plane {plane}");
        }
    }
}

fn values(w: &World, tag: u16) -> Option<(Status, u64)> {
    w.answer(0, tag).map(|done| (done.status, done.value))
}

#[test]
fn a_publish_ends_when_its_level_is_reached() {
    let mut w = world(16, 40, |_| {});
    w.eager_log = false;
    w.fill(0, 0, 3, 2);
    let h = hashes(1, 3);
    let stored = ask(&mut w, &h, Level::Stored);
    // Records of one disk are sent without waiting for each other; the publish waits for the last one.
    assert_eq!(w.log.flight.len(), 3);
    assert!(w.run_log_request(0) && w.run_log_request(0));
    assert_eq!(values(&w, stored), None);
    assert!(w.log.flight[0].urgent, "a request waits for it");
    w.run_log_request(0);
    assert_eq!(values(&w, stored), Some((Status::Ok, Level::Stored as u64)));
    let Recorded { hash, parent, planes, .. } = w.log.records[&(0, 1)].clone();
    assert_eq!((hash, parent, planes), (h[1], h[0], vec![3]));
    let durable = ask(&mut w, &h, Level::Durable);
    assert_eq!(w.log.flight.len(), 1, "all is recorded: only a flush is missing");
    assert_eq!(w.log.flight[0].wanted, Wanted::Flush);
    let late = ask(&mut w, &h[..2], Level::Durable);
    w.run_log_request(0);
    assert_eq!(values(&w, durable), Some((Status::Ok, Level::Durable as u64)));
    assert_eq!(values(&w, late), None, "that flush began before");
    w.settle();
    w.run_log_request(0);
    assert_eq!(values(&w, late), Some((Status::Ok, Level::Durable as u64)));
    let c = w.core.counters();
    assert_eq!((c.published, c.stored, c.durable, c.records, c.flushes), (3, 3, 5, 3, 2));
}

#[test]
fn a_publish_that_waits_ends_by_deadline_cancel_loss_and_failed_flush() {
    let mut w = world(16, 40, |_| {});
    w.eager_log = false;
    w.fill(0, 0, 2, 2);
    let h = hashes(1, 2);
    let late = w.ask_for(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &h, level: Level::Stored }, 50);
    w.pass(60);
    assert_eq!(values(&w, late), Some((Status::TimedOut, Level::Published as u64)));
    let canceled = ask(&mut w, &h, Level::Stored);
    w.ok(0, Request::Cancel { tag: canceled });
    assert_eq!(values(&w, canceled), Some((Status::Canceled, Level::Published as u64)));
    while w.run_log_request(0) {}
    let unflushed = ask(&mut w, &h, Level::Durable);
    w.log.fail_next.push_back(Status::Io);
    w.run_log_request(0);
    assert_eq!(values(&w, unflushed), Some((Status::Io, Level::Stored as u64)));
    w.fill(0, 0, 1, 2);
    let lost = w.ask(0, Request::Publish { seq: 0, first: 2, parent: h[1], hashes: &[9], level: Level::Durable });
    w.event(Event::SessionLost { session: 0 }).unwrap();
    w.agents.remove(&0);
    while w.run_log_request(0) {}
    w.settle();
    assert_eq!(values(&w, lost), None, "the session is gone");
}

#[test]
fn what_cannot_be_stored_says_so_and_stays_published() {
    for status in [Status::NoSpace, Status::Io] {
        let mut w = world(16, 40, |_| {});
        let pages = w.fill(0, 0, 2, 2);
        let h = hashes(1, 2);
        w.log.fail_next = vec![status; 30].into();
        let tag = ask(&mut w, &h, Level::Stored);
        while values(&w, tag).is_none() {
            w.now = w.core.next_deadline().expect("another try");
            w.event(Event::Tick).unwrap();
        }
        assert_eq!(values(&w, tag), Some((status, Level::Published as u64)));
        assert!(w.core.counters().records_failed >= 3 && w.core.occupancy().published == 2);
        w.log.fail_next.clear();
        let attached = drop_and_attach(&mut w, &h);
        assert_eq!(attached.value, 2);
        check(&mut w, &attached.list, &pages);
        // A lookup triggers another attempt.
        w.pass(2_000_000);
        assert_eq!(w.log.records.len(), 2);
    }
    let mut w = world(16, 0, |_| {});
    w.fill(0, 0, 1, 2);
    let tag = ask(&mut w, &[5], Level::Stored);
    assert_eq!(values(&w, tag), Some((Status::NotAdmitted, Level::Published as u64)), "there is no NVMe tier");
}

#[test]
fn a_childs_record_on_another_disk_waits_for_its_parents() {
    let mut w = world(16, 40, |_| {});
    (w.eager_log, w.disk.disks, w.disk.slab_slots) = (false, 2, 1);
    w.fill(0, 0, 3, 2);
    let tag = ask(&mut w, &hashes(1, 3), Level::Stored);
    let mut waited = false;
    while values(&w, tag).is_none() {
        let disks: BTreeSet<_> = w.log.flight.iter().map(|n| w.disk.disk_of(n.slab())).collect();
        assert_eq!(disks.len(), 1, "those of another disk wait: {:?}", w.log.flight);
        waited |= w.log.flight.len() + w.log.records.len() < 3;
        w.run_log_request(0);
        w.settle();
    }
    assert!(waited);
    assert_eq!(values(&w, tag), Some((Status::Ok, Level::Stored as u64)));
}

#[test]
fn a_slot_is_written_again_only_when_its_log_knows() {
    let mut w = world(16, 4, |_| {});
    w.fill(0, 0, 4, 2);
    let tag = ask(&mut w, &hashes(1, 4), Level::Stored);
    assert_eq!(values(&w, tag), Some((Status::Ok, Level::Stored as u64)));
    w.ok(0, Request::SeqDrop { seq: 0 });
    w.eager_log = false;
    w.ok(0, Request::SeqCreate { seq: 0 });
    let pages = w.fill(0, 0, 4, 2);
    let written = w.disk.written;
    let tag = ask(&mut w, &hashes(10, 4), Level::Stored);
    let o = w.core.occupancy();
    assert!(o.nvme_slots_awaiting_erasure > 0 && w.disk.written == written, "{o:?}");
    assert!(w.log.flight.iter().all(|n| matches!(n.wanted, Wanted::Erase(_))), "{:?}", w.log.flight);
    // The fake log asserts that no recorded slot is written.
    for _ in 0..100 {
        w.run_log_request(0);
        w.settle();
    }
    assert_eq!(values(&w, tag), Some((Status::Ok, Level::Stored as u64)));
    assert_eq!(w.log.reachable().len(), 4);
    let attached = drop_and_attach(&mut w, &hashes(10, 4));
    check(&mut w, &attached.list, &pages);
    assert!(w.core.counters().erases >= 4);
}

#[test]
fn erasures_that_fail_end_what_waits_and_nothing_hangs() {
    let mut w = world(16, 4, |_| {});
    w.fill(0, 0, 4, 2);
    ask(&mut w, &hashes(1, 4), Level::Stored);
    w.ok(0, Request::SeqDrop { seq: 0 });
    w.ok(0, Request::SeqCreate { seq: 0 });
    w.fill(0, 0, 4, 2);
    w.log.fail_next = vec![Status::Io; 30].into();
    let tag = w.ask_for(
        0,
        Request::Publish { seq: 0, first: 0, parent: 0, hashes: &hashes(10, 4), level: Level::Stored },
        60_000_000,
    );
    w.run_timers(w.now + 30_000_000);
    // When the log works again, all operations continue.
    assert_eq!(w.core.occupancy().nvme_slots_awaiting_erasure, 0);
    assert!(values(&w, tag).is_some());
    assert!(w.core.counters().erases_failed >= 8 && w.log.records.len() == 4);
}

#[test]
fn a_restart_finds_what_was_stored_and_nothing_without_its_ancestors() {
    let mut w = world(16, 40, |_| {});
    let pages = w.fill(0, 0, 6, 2);
    let h = hashes(1, 6);
    ask(&mut w, &h, Level::Stored);
    assert_eq!(w.log.records.len(), 6);
    // The record of the fifth is lost, so the sixth cannot be found.
    let fifth = *w.log.records.iter().find(|(_, r)| r.hash == h[4]).unwrap().0;
    w.log.records.remove(&fifth);
    w.restart(vec![16]);
    let c = *w.core.counters();
    assert_eq!((c.restored, c.restore_refused), (4, 1));
    let o = w.core.occupancy();
    assert_eq!(
        (o.blocks, o.published, o.index_only, o.nvme_slots_index_only, o.nvme_slots_awaiting_erasure),
        (0, 4, 4, 4, 0)
    );
    assert!(!w.core.is_vacant() && w.log.records.len() == 4, "refused blocks are erased");
    begin(&mut w);
    let attached = w.ok(0, Request::AttachPrefix { seq: 0, hashes: &h, asked: Some(0) });
    assert_eq!(attached.value, 4);
    check(&mut w, &attached.list, &pages);
    assert_eq!(w.core.occupancy().index_only, 0);
    // The rest is still stored.
    assert_eq!(ask(&mut w, &h[..4], Level::Stored), w.done.keys().last().unwrap().1);
    assert_eq!(w.log.written, 6, "no record is written twice");
}

#[test]
fn a_restart_with_entries_has_host_memory_before_the_first_hit() {
    let mut w = world(16, 40, |_| {});
    w.fill(0, 0, 4, 2);
    let h = hashes(1, 4);
    ask(&mut w, &h, Level::Stored);
    w.restart(vec![16]);
    assert_eq!(w.core.occupancy().host_frames, 16, "it was asked for when the entries came back");
    // Ticks do not return it.
    for _ in 0..4 {
        w.pass(1_000_000);
    }
    assert_eq!(w.core.occupancy().host_frames, 16);
    begin(&mut w);
    assert_eq!(w.ok(0, Request::AttachPrefix { seq: 0, hashes: &h, asked: Some(0) }).value, 4);
    assert_eq!(w.core.occupancy().host_frames, 16);
    // If the node has none, the blocks are cached all the same.
    w.restart(vec![0]);
    let o = w.core.occupancy();
    assert_eq!((o.host_frames, o.published), (0, 4));
}

#[test]
fn pages_out_of_their_window_are_not_recorded_and_not_there_after_a_restart() {
    let window = Plane { page_bytes: PAGE as u32, kind: PlaneKind::Window { tokens: 4 } };
    let mut w = world(16, 40, |cfg| cfg.planes[1] = window);
    let pages = w.fill(0, 0, 6, 2);
    let h = hashes(1, 6);
    ask(&mut w, &h, Level::Stored);
    let planes: Vec<_> = h.iter().map(|h| w.log.records.values().find(|r| r.hash == *h).unwrap().planes[0]).collect();
    assert!(planes[0] == 1 && planes[5] == 3, "{planes:?}");
    w.restart(vec![16]);
    begin(&mut w);
    // A prefix without the window at its end cannot be attached.
    assert_eq!(w.ok(0, Request::AttachPrefix { seq: 0, hashes: &h[..2], asked: Some(0) }).value, 0);
    let attached = w.ok(0, Request::AttachPrefix { seq: 0, hashes: &h, asked: Some(0) });
    assert_eq!(attached.value, 6);
    check(&mut w, &attached.list, &pages.iter().map(|(b, c)| (*b, vec![c[0]])).collect::<Vec<_>>());
    let lost = w.call(0, Request::Fault { lane: 0, use_pos: 0, seq: 0, index: 0, plane: 1, whole: false });
    assert_eq!(lost.status, Status::Lost);
}

#[test]
fn entries_outnumber_blocks_many_times() {
    let mut w = world(16, 400, |cfg| (cfg.limits.blocks_max, cfg.limits.entries_max) = (128, 400));
    // One id in sixteen is kept free for index-only blocks that are attached again.
    let tick = |w: &mut World| w.event(Event::Tick).unwrap();
    let mut all = Vec::new();
    for round in 0..40u128 {
        let pages = w.fill(0, 0, 8, 2);
        let h = hashes(100 * round + 1, 8);
        let tag = ask(&mut w, &h, Level::Stored);
        assert_eq!(values(&w, tag), Some((Status::Ok, Level::Stored as u64)), "round {round}");
        w.ok(0, Request::SeqDrop { seq: 0 });
        w.ok(0, Request::SeqCreate { seq: 0 });
        all.push((h, pages));
        tick(&mut w);
    }
    let o = w.core.occupancy();
    assert!(o.published == 320 && o.index_only >= 200 && o.nvme_slots_used == 320, "{o:?}");
    for (h, pages) in &all {
        let attached = drop_and_attach(&mut w, h);
        assert_eq!(attached.value, 8);
        check(&mut w, &attached.list, pages);
        tick(&mut w);
    }
    assert_eq!(w.core.counters().cache_drops, 0);
}

#[test]
fn a_disk_that_goes_takes_what_was_only_there_and_its_children() {
    let mut w = world(64, 40, |_| {});
    (w.disk.disks, w.disk.slab_slots) = (2, 3);
    w.attach_shard(1, 0, 1, &[16]).unwrap();
    let pages = w.fill(0, 0, 8, 2);
    let h = hashes(1, 8);
    ask(&mut w, &h, Level::Stored);
    w.restart(vec![64]);
    begin(&mut w);
    // The first two blocks are in host again, the others only on NVMe: three slots per slab, every other slab on the other disk.
    let attached = w.ok(0, Request::AttachPrefix { seq: 0, hashes: &h[..2], asked: Some(0) });
    check(&mut w, &attached.list, &pages[..2]);
    let at = |w: &World, h: u128| *w.log.records.iter().find(|(_, r)| r.hash == h).unwrap().0;
    let (first, second) = (at(&w, h[0]).0, at(&w, h[3]).0);
    assert_ne!(first, second);
    w.kill_disk(second);
    let o = w.core.occupancy();
    assert_eq!(o.published, 3, "the fourth and its descendants are gone: {o:?}");
    assert_eq!(w.log.reachable().len(), 3, "their records elsewhere are erased");
    w.kill_disk(first);
    assert_eq!(w.core.counters().pages_lost, 0, "both blocks are in host");
    assert_eq!(w.core.occupancy().published, 2);
    check(&mut w, &attached.list, &pages[..2]);
    w.settle();
    assert_eq!(w.log.reachable().len(), 2, "they are stored again on the remaining disk");
    assert!(w.log.records.keys().all(|key| ![first, second].contains(&key.0)));
}

#[test]
fn what_was_only_on_a_disk_that_goes_is_said_to_be_lost() {
    let mut w = world(16, 40, |_| {});
    w.disk.slab_slots = 40;
    w.fill(0, 0, 20, 2);
    w.eager = false;
    let on_disk = (0..20).find(|&index| {
        let tag =
            w.ask_for(0, Request::Fault { lane: 0, use_pos: 0, seq: 0, index, plane: 0, whole: false }, 60_000_000);
        values(&w, tag).is_none() && !w.disk.flight.is_empty()
    });
    assert!(on_disk.is_some(), "something is on NVMe only");
    w.kill_disk(0);
    w.eager = true;
    w.settle();
    let lost: Vec<_> = w.done.values().filter(|done| done.status == Status::Lost).collect();
    assert!(!lost.is_empty() && w.core.counters().pages_lost > 0);
}

#[test]
fn a_host_copy_that_is_bad_is_read_again_from_nvme() {
    let mut w = world(16, 40, |_| {});
    let pages = w.fill(0, 0, 4, 2);
    let h = hashes(1, 4);
    ask(&mut w, &h, Level::Stored);
    w.event(Event::SessionLost { session: 0 }).unwrap();
    w.agents.remove(&0);
    begin(&mut w);
    let attached = w.ok(0, Request::AttachPrefix { seq: 0, hashes: &h, asked: Some(0) });
    w.eager = false;
    let tag =
        w.ask_for(0, Request::Fault { lane: 0, use_pos: 0, seq: 0, index: 0, plane: 0, whole: false }, 60_000_000);
    let (id, job) = w.agents.get_mut(&0).unwrap().jobs.pop_front().unwrap();
    assert!(matches!(job, Job::CopyIn { .. }), "{job:?}");
    w.fail(0, job);
    w.end_job(0, id, Status::Corrupt);
    w.eager = true;
    w.settle();
    assert_eq!(values(&w, tag).map(|v| v.0), Some(Status::Ok));
    check(&mut w, &attached.list, &pages);
    assert!(w.disk.read > 0 && w.core.counters().host_corrupt == 1 && w.core.counters().pages_lost == 0);
}

/// A recorded page that cannot be read back removes its block and all descendants from the index and from the log.
#[test]
fn a_page_that_rots_takes_its_entry_along() {
    let mut w = world(16, 40, |_| {});
    let pages = w.fill(0, 0, 4, 2);
    let h = hashes(1, 4);
    ask(&mut w, &h, Level::Stored);
    w.restart(vec![16]);
    begin(&mut w);
    let second = *w.log.records.iter().find(|(_, r)| r.hash == h[1]).unwrap().0;
    w.disk.rotten.insert((second.0, second.1, 1));
    let attached = w.ok(0, Request::AttachPrefix { seq: 0, hashes: &h, asked: Some(0) });
    let lost = w.call(0, Request::Fault { lane: 0, use_pos: 0, seq: 0, index: 1, plane: 1, whole: false });
    assert_eq!(lost.status, Status::Lost);
    check(&mut w, &attached.list[..1], &pages[..1]);
    assert_eq!((w.core.occupancy().published, w.core.counters().entries_corrupt), (1, 1));
    assert_eq!(w.log.reachable(), [(0, h[0])]);
    assert_eq!(drop_and_attach(&mut w, &h).value, 1);
}

#[test]
fn classes_that_have_no_host_memory_yet_do_not_wait_for_one_another() {
    let mut cfg = config(vec![full(PAGE as u32), full(300), full(64)]);
    // Two grants as large as the first one, for three classes.
    cfg.limits.host_bytes_max = 2 * 8 * PAGE;
    cfg.limits.nvme_bytes_max = 40 * 2 * PAGE;
    let mut w = World::new(cfg);
    (w.node.frames, w.node.slab_frames) = (vec![8; 3], 8);
    (w.disk.node_slots, w.disk.slab_slots) = (40, 4);
    // The first class is short of tier 0, so only it has its grant before the publish.
    w.attach(0, 1, &[4, 16, 16]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    w.fill(0, 0, 5, 3);
    let stored = ask(&mut w, &hashes(1, 5), Level::Stored);
    assert_eq!(values(&w, stored), Some((Status::Ok, Level::Stored as u64)));
}

#[test]
fn a_publish_that_finds_no_host_memory_is_told_so_and_moves_nothing_in_circles() {
    // Host memory holds one block, NVMe another: there is no room for the third while the sequence runs.
    let mut w = world(2, 1, |_| {});
    w.fill(0, 0, 3, 2);
    let stored = ask(&mut w, &hashes(1, 3), Level::Stored);
    for _ in 0..100 {
        w.pass(100);
    }
    assert_eq!(values(&w, stored), Some((Status::NoSpace, Level::Published as u64)));
    assert!(w.core.counters().jobs < 20, "{} jobs", w.core.counters().jobs);
}

#[test]
fn a_publish_does_not_wait_for_a_slot_of_its_parent() {
    // All pages are stored and written as soon as possible.
    let mut w = world(8, 1, |cfg| {
        let p = &mut cfg.policy;
        (p.clean_low_percent, p.clean_high_percent) = (100, 100);
        (p.host_clean_low_percent, p.host_clean_high_percent) = (100, 100);
    });
    let blocks = w.ok(0, Request::Reserve { seq: 0, count: 2 }).list;
    blocks.iter().for_each(|&block| (0..2).for_each(|plane| _ = w.write(0, block, plane)));
    w.ok(0, Request::Acquire { seq: 0, plane: 0, planes: 2, first: 0, count: 1 });
    w.ok(0, Request::Commit { seq: 0, tokens: 2 * u64::from(w.core.config().page_tokens) });
    w.event(Event::Tick).unwrap();
    let o = w.core.occupancy();
    assert_eq!(
        (o.nvme_slots_used, w.disk.written),
        (1, 2),
        "the second block has the only slot: the first one is pinned"
    );
    let publish = ask(&mut w, &hashes(1, 2), Level::Stored);
    assert_eq!(values(&w, publish), Some((Status::NoSpace, Level::Published as u64)));
}

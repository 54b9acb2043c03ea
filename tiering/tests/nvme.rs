//! The third tier: pages that do not fit into host go to NVMe and come back.

use kvtide_fake::*;
use kvtide_tiering::api::*;

const PAGE: u64 = 4096;

/// A space of equal planes over three tiers: frames of tier 0 and host, slots on disk.
pub fn three_tiers(planes: u16, tier0: u32, host: u32, slots: u32) -> World {
    let mut cfg = config((0..planes).map(|_| full(PAGE as u32)).collect());
    cfg.limits.host_bytes_max = u64::from(host) * PAGE;
    cfg.limits.nvme_bytes_max = u64::from(slots) * u64::from(planes) * PAGE;
    let mut w = World::sized(cfg, (host, host), (slots, 5));
    w.attach(0, 1, &[tier0]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    w
}

#[test]
fn what_host_cannot_hold_goes_to_disk_and_comes_back() {
    let mut w = three_tiers(3, 12, 12, 40);
    let pages = w.fill(0, 0, 30, 3);
    assert!(w.disk.written > 0);
    for (index, (block, contents)) in pages.iter().enumerate() {
        for plane in 0..3u16 {
            if w.read(0, *block, plane).is_none() {
                w.ok(0, Request::Fault { lane: 0, use_pos: 0, seq: 0, index: index as u32, plane, whole: false });
            }
            assert_eq!(w.read(0, *block, plane), Some(contents[usize::from(plane)]));
        }
    }
    assert!(w.disk.read > 0);
    w.ok(0, Request::SeqDrop { seq: 0 });
    assert_eq!((w.core.occupancy().blocks, w.core.occupancy().nvme_slots_used), (0, 0));
}

/// The tiers hold exactly the live pages: every step completes, and a request that does not fit fails at once.
#[test]
fn tight_tiers_never_hang() {
    let planes = 6u16;
    for (tier0, host, slots, scan) in [(36, 36, 12, 4), (11, 12, 20, 8), (36, 20, 8, 8), (24, 60, 3, 1), (13, 8, 10, 2)]
    {
        let mut cfg = config((0..planes).map(|_| full(PAGE as u32)).collect());
        cfg.policy.scan_frames = scan;
        cfg.limits.host_bytes_max = host * PAGE;
        cfg.limits.nvme_bytes_max = slots * u64::from(planes) * PAGE;
        let mut w = World::sized(cfg, (host as u32, 9), (slots as u32, 4));
        w.attach(0, 1, &[tier0]);
        w.ok(0, Request::SeqCreate { seq: 0 });
        let (mut pages, mut step) = (Vec::new(), 0);
        loop {
            let done = w.call(0, Request::Reserve { seq: 0, count: 1 });
            if done.status != Status::Ok {
                assert_eq!(done.status, Status::NoSpace);
                break;
            }
            let contents = (0..planes).map(|p| w.write(0, done.list[0], p)).collect();
            pages.push((done.list[0], contents));
            for token in 1..=4 {
                step += 1;
                w.step(0, 0, step, 0, &pages, planes);
                w.ok(0, Request::Commit { seq: 0, tokens: 4 * (pages.len() as u64 - 1) + token });
            }
        }
        let in_host = (u64::from(tier0 - scan.max(2).min(tier0 / 2)) + host) / u64::from(planes);
        let on_disk = slots + (host - u64::from(planes) - 1) / u64::from(planes);
        assert_eq!(pages.len() as u64, in_host.max(on_disk), "tier 0 {tier0}, host {host}, slots {slots}, scan {scan}");
        for _ in 0..4 {
            step += 1;
            w.step(0, 0, step, 0, &pages, planes);
        }
    }
}

/// A cyclic scan over three tiers reads from disk little more than the pages that tier 0 and host cannot hold.
#[test]
fn a_scan_reads_what_two_tiers_cannot_hold_and_little_more() {
    let (planes, tier0, host) = (6u16, 36u32, 108u32);
    for (scan, host_scan) in [(8, 16), (4, 32)] {
        let mut cfg = config((0..planes).map(|_| full(PAGE as u32)).collect());
        (cfg.policy.scan_frames, cfg.policy.host_scan_frames) = (scan, host_scan);
        cfg.limits.host_bytes_max = u64::from(host) * PAGE;
        cfg.limits.nvme_bytes_max = 80 * u64::from(planes) * PAGE;
        let mut w = World::sized(cfg, (host, 27), (80, 16));
        w.attach(0, 1, &[tier0]);
        w.ok(0, Request::SeqCreate { seq: 0 });
        let mut pages = w.fill(0, 0, 56, planes);
        for step in 1..=28u64 {
            if step % 4 == 1 && pages.len() < 62 {
                // The sequence grows by a block every four steps.
                pages.extend(w.fill(0, 0, 1, planes));
            }
            let before = w.disk.read;
            w.step(0, 0, step, 0, &pages, planes);
            let (read, needed) = (w.disk.read - before, pages.len() as u32 * u32::from(planes));
            let optimum = u64::from(needed - tier0 - host + scan + host_scan);
            // The first step follows the prefill, and also reads the pages that the second reads first.
            assert!(step == 1 || read * 20 <= optimum * 21, "step {step}: {read} pages read, {optimum} at best");
        }
        assert_eq!(w.faults, 0, "every page was there in time");
        let c = w.core.counters();
        assert!(c.prefetch_wasted == 0 && c.prefetch_used > 0 && c.nvme_to_host.total_pages() == w.disk.read);
        // Every page is written once.
        assert!(w.disk.written <= pages.len() as u64 * u64::from(planes));
    }
}

/// Advance time until no timer fires for `us`.
fn pass_time(w: &mut World, us: u64) {
    let end = w.now + us;
    w.run_timers(end);
    w.now = end;
    w.event(Event::Tick).unwrap();
}

#[test]
fn a_disk_that_takes_nothing_is_an_error_in_bounded_time_and_loses_nothing() {
    for status in [Status::Io, Status::NoSpace] {
        let mut w = three_tiers(3, 12, 12, 40);
        let mut pages = w.fill(0, 0, 12, 3);
        w.disk.fail_next = vec![status; 200].into();
        // Requests succeed while host and tier 0 have room; then one fails, and its status gives the reason.
        let refused = loop {
            let tag = w.ask_for(0, Request::Reserve { seq: 0, count: 1 }, 10_000_000);
            pass_time(&mut w, 2_000_000);
            let done = w.answer(0, tag).expect("an answer long before the deadline");
            if done.status != Status::Ok {
                break done.status;
            }
            let contents = (0..3).map(|p| w.write(0, done.list[0], p)).collect();
            pages.push((done.list[0], contents));
            w.ok(0, Request::Commit { seq: 0, tokens: 4 * pages.len() as u64 });
        };
        assert_eq!(refused, status);
        assert!(w.core.occupancy().nvme_slots_bad <= 2, "a disk that fails as a whole is not worn out slot by slot");
        assert!(w.disk.begun.1 < 100, "it is asked now and then, not for ever");
        // The device works again: all pages exist, and there is room.
        w.disk.fail_next.clear();
        pass_time(&mut w, 2_000_000);
        assert_eq!(w.core.counters().pages_lost, 0);
        for step in 1..4 {
            w.step(0, 0, step, 0, &pages, 3);
        }
        w.ok(0, Request::Reserve { seq: 0, count: 1 });
    }
}

#[test]
fn a_worn_out_slot_is_given_up_and_another_one_taken() {
    let mut w = three_tiers(2, 8, 8, 20);
    w.fill(0, 0, 6, 2);
    let bad = w.core.occupancy().nvme_slots_bad;
    // From now on the device fails every write to the first slot that is written.
    w.eager = false;
    let mut worn = None;
    for i in 7..=18 {
        let tag = w.ask_for(0, Request::Reserve { seq: 0, count: 1 }, 10_000_000);
        for _ in 0..40 {
            while w.run_job(0) {}
            if let Some(t) = w.disk.take(0) {
                let place = (t.at.slab, t.at.slot);
                let fails = t.kind == IoKind::Write && *worn.get_or_insert(place) == place;
                let (status, bad) = if fails { (Status::Io, Vec::new()) } else { w.disk.carry_out(&t, &mut w.host) };
                w.end_io(t.id, status, &bad);
            }
            w.settle();
            pass_time(&mut w, 1_000);
        }
        assert_eq!(w.answer(0, tag).map(|d| d.status), Some(Status::Ok));
        w.ok(0, Request::Commit { seq: 0, tokens: 4 * i });
    }
    assert_eq!(w.core.occupancy().nvme_slots_bad, bad + 1);
    assert_eq!(w.core.counters().pages_lost, 0);
}

#[test]
fn a_page_that_cannot_be_read_back_is_lost_and_nothing_else() {
    let mut w = three_tiers(3, 12, 12, 40);
    let pages = w.fill(0, 0, 20, 3);
    let fault = |w: &mut World, index: u32, plane: u16| {
        let tag = w.ask_for(0, Request::Fault { lane: 0, use_pos: 0, seq: 0, index, plane, whole: false }, 10_000_000);
        pass_time(w, 100_000);
        w.answer(0, tag).unwrap().status
    };
    let on_disk: Vec<_> = w.disk.pages.keys().copied().collect();
    // A page with one read error is read again.
    w.disk.fail_next.push_back(Status::Io);
    w.disk.fail_next.push_back(Status::TimedOut);
    assert_eq!(fault(&mut w, 0, 0), Status::Ok);
    assert_eq!(w.read(0, pages[0].0, 0), Some(pages[0].1[0]));
    assert_eq!(w.core.counters().io_retries, 1, "a transfer that never started is no failure");
    // A corrupt page is never a hit.
    let rotten = on_disk.iter().copied().filter(|k| k.2 == 1).collect();
    w.disk.rotten = rotten;
    assert_eq!(fault(&mut w, 1, 1), Status::Lost);
    assert_eq!(w.read(0, pages[1].0, 1), None);
    assert_eq!(w.core.counters().checksum_failed, 3);
    assert_eq!(w.core.counters().pages_lost, 1);
    assert_eq!(fault(&mut w, 1, 0), Status::Ok, "its neighbours are well");
}

/// A published block with a corrupt page is not found any more, nor are its descendants.
#[test]
fn a_rotten_entry_is_a_miss_with_its_descendants() {
    let mut w = three_tiers(2, 8, 10, 40);
    let hashes: Vec<u128> = (1..=10).collect();
    w.fill(0, 0, 10, 2);
    w.ok(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &hashes, level: Level::Published });
    w.ok(0, Request::SeqDrop { seq: 0 });
    w.ok(0, Request::SeqCreate { seq: 1 });
    w.fill(0, 1, 8, 2);
    w.ok(0, Request::SeqDrop { seq: 1 });
    w.ok(0, Request::SeqCreate { seq: 2 });
    assert_eq!(
        w.ok(0, Request::AttachPrefix { seq: 2, hashes: &hashes, asked: Some(0) }).value,
        10,
        "all of it survives on disk"
    );
    w.disk.rotten = w.disk.pages.keys().copied().collect();
    let mut lost = 0;
    for index in 0..10 {
        let tag =
            w.ask_for(0, Request::Fault { lane: 0, use_pos: 0, seq: 2, index, plane: 0, whole: false }, 10_000_000);
        pass_time(&mut w, 100_000);
        lost += u32::from(w.answer(0, tag).unwrap().status == Status::Lost);
    }
    assert!(lost > 0);
    w.ok(0, Request::SeqDrop { seq: 2 });
    w.ok(0, Request::SeqCreate { seq: 3 });
    let found = w.ok(0, Request::AttachPrefix { seq: 3, hashes: &hashes, asked: Some(0) }).value;
    assert!(found < 10, "{found}");
}

/// A tail is resumed while it is being written back. The written copy on disk is stale, and the host frame that the write reads is
/// not reused before it ends.
#[test]
fn a_tail_resumed_under_a_write_is_written_again() {
    let mut cfg = config(vec![full(PAGE as u32), full(PAGE as u32)]);
    cfg.limits.host_bytes_max = 8 * PAGE;
    cfg.limits.nvme_bytes_max = 40 * 2 * PAGE;
    (cfg.policy.host_clean_low_percent, cfg.policy.host_clean_high_percent) = (100, 100);
    let mut w = World::sized(cfg, (8, 8), (40, 10));
    w.attach(0, 1, &[12]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    let tail = w.ok(0, Request::Reserve { seq: 0, count: 1 }).list[0];
    (0..2).for_each(|plane| _ = w.write(0, tail, plane));
    w.eager = false;
    let run_jobs = |w: &mut World| {
        while w.run_job(0) {
            w.settle();
        }
    };
    let park = w.ask(0, Request::Park { seq: 0, due_us: 0 });
    run_jobs(&mut w);
    assert_eq!(w.answer(0, park).map(|d| d.status), Some(Status::Ok));
    let write = w.disk.take(0).expect("the tail is being written down");
    assert_eq!(write.kind, IoKind::Write);
    let resume = w.ask(0, Request::Resume { seq: 0 });
    run_jobs(&mut w);
    assert_eq!(w.answer(0, resume).map(|d| d.status), Some(Status::Ok));
    // The engine continues in the tail, and its pages need new host frames and a new slot on disk.
    let wrote: Vec<_> = (0..2).map(|plane| w.write(0, tail, plane)).collect();
    w.ok(0, Request::Commit { seq: 0, tokens: 4 });
    w.ok(0, Request::Park { seq: 0, due_us: 0 });
    run_jobs(&mut w);
    let (status, bad) = w.disk.carry_out(&write, &mut w.host);
    w.end_io(write.id, status, &bad);
    w.eager = true;
    w.settle();
    w.ok(0, Request::Resume { seq: 0 });
    let pages = w.fill(0, 0, 12, 2);
    for plane in 0..2u16 {
        if w.read(0, tail, plane).is_none() {
            w.ok(0, Request::Fault { lane: 0, use_pos: 0, seq: 0, index: 0, plane, whole: false });
        }
        assert_eq!(w.read(0, tail, plane), Some(wrote[usize::from(plane)]));
    }
    assert_eq!(pages.len(), 12);
}

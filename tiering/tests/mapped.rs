//! Mapped frames: streaming pages are read in place in host memory, and unmapped when it is short.

use kvtide_fake::*;
use kvtide_tiering::api::*;

type Pages = Vec<(BlockId, Vec<u64>)>;

/// One plane, a tier 0 of `frames` frames of which two stream, `mapped_frames` mapped frames, and a sequence of `blocks` sealed blocks.
fn filled(frames: u32, mapped_frames: u32, blocks: u32, nvme_bytes: u64, host_frames: u32) -> (World, Pages) {
    let mut cfg = config(vec![full(4096)]);
    cfg.policy.scan_frames = 2;
    cfg.limits.nvme_bytes_max = nvme_bytes;
    let mut w = World::new(cfg);
    w.node.slab_frames = host_frames.min(16);
    w.node.frames = vec![host_frames];
    w.disk.node_slots = 1 << 10;
    w.disk.slab_slots = 64;
    w.attach(0, 1, &[frames, mapped_frames]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    let pages = w.fill(0, 0, blocks, 1);
    (w, pages)
}

fn in_place(w: &World) -> usize {
    w.agents[&0].in_place().count()
}

fn is_mapped(w: &World, block: BlockId) -> bool {
    w.agents[&0].table.frame(block, 0).is_some_and(|frame| w.agents[&0].is_mapped_frame(frame))
}

#[test]
fn a_scan_with_mapped_frames_for_what_streams_copies_nothing() {
    let (mut w, pages) = filled(8, 64, 40, 0, 64);
    for step in 1..4 {
        w.step(0, 0, step, 0, &pages, 1);
    }
    let copied = w.core.counters().host_to_tier0.total_pages();
    for step in 4..12 {
        assert_eq!(w.step(0, 0, step, 0, &pages, 1), 0, "step {step}");
    }
    assert_eq!(w.core.counters().host_to_tier0.total_pages(), copied);
    assert!(in_place(&w) >= 32, "{} of 40 pages are read in place", in_place(&w));
    assert_eq!(w.core.counters().shown_in_place, in_place(&w) as u64, "each was shown once and stays");
    assert_eq!(w.core.occupancy().mapped_frames_used, in_place(&w) as u64);
}

#[test]
fn without_mapped_frames_the_same_scan_copies_every_step() {
    let (mut w, pages) = filled(8, 0, 40, 0, 64);
    for step in 1..4 {
        w.step(0, 0, step, 0, &pages, 1);
    }
    assert!((4..12).all(|step| w.step(0, 0, step, 0, &pages, 1) >= 32));
}

#[test]
fn what_is_acquired_leaves_its_mapped_frame_for_tier_0() {
    let (mut w, pages) = filled(8, 64, 40, 0, 64);
    (1..4).for_each(|step| _ = w.step(0, 0, step, 0, &pages, 1));
    let first = pages.iter().position(|&(b, _)| is_mapped(&w, b)).unwrap() as u32;
    w.ok(0, Request::Acquire { seq: 0, plane: 0, planes: 1, first, count: 2 });
    for (b, contents) in &pages[first as usize..first as usize + 2] {
        assert!(!is_mapped(&w, *b));
        assert_eq!(w.read(0, *b, 0), Some(contents[0]));
    }
    w.ok(0, Request::Release { seq: 0, plane: 0, planes: 1, first, count: 2 });
    (4..8).for_each(|step| _ = w.step(0, 0, step, 0, &pages, 1));
}

#[test]
fn pages_come_home_when_tier_0_has_room_again() {
    let (mut w, pages) = filled(48, 64, 40, 0, 64);
    w.ok(0, Request::Tier0Resize { class: 0, frames: 8 });
    (1..4).for_each(|step| _ = w.step(0, 0, step, 0, &pages, 1));
    assert!(in_place(&w) >= 32);
    w.ok(0, Request::Tier0Resize { class: 0, frames: 48 });
    (4..60).for_each(|step| _ = w.step(0, 0, step, 0, &pages, 1));
    assert_eq!(in_place(&w), 0, "there is room for all of them");
}

#[test]
fn mapped_frames_are_emptied_for_pages_that_stream_from_disk() {
    let (mut w, pages) = filled(8, 64, 28, 1 << 24, 24);
    (1..4).for_each(|step| _ = w.step(0, 0, step, 0, &pages, 1));
    // Of 24 host frames, mapped frames exclude those through which a block, each lane's fault and the scan stream.
    let most = 24 - 1 - 1 - 8;
    assert_eq!(in_place(&w), most);
    assert_eq!(w.core.counters().pages_unmapped, 0);
    // Four more lanes.
    w.attach(1, 4, &[8, 0]);
    w.ok(0, Request::SeqCreate { seq: 1 });
    let more = w.fill(0, 1, 30, 1);
    for step in 4..12 {
        w.step(0, 0, 10 * step, 0, &pages, 1);
        w.step(0, 0, 10 * step + 5, 1, &more, 1);
        assert!(in_place(&w) <= most - 4);
    }
    assert!(w.core.counters().pages_unmapped >= 4);
    assert!(w.core.counters().nvme_to_host.total_pages() > 0);
}

#[test]
fn a_lost_session_may_go_on_reading_in_place_until_it_exited() {
    let (mut w, pages) = filled(8, 64, 40, 0, 64);
    let hashes: Vec<u128> = (1..=40).collect();
    w.ok(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &hashes, level: Level::Published });
    (1..4).for_each(|step| _ = w.step(0, 0, step, 0, &pages, 1));
    let shown: Vec<_> = w.agents[&0].in_place().collect();
    assert!(shown.len() >= 32);
    w.event(Event::SessionLost { session: 0 }).unwrap();
    w.agents.remove(&0);
    assert!(w.gone.is_empty(), "its process may still read");
    // Another session causes all blocks to be dropped to make room.
    w.attach(1, 1, &[8, 0]);
    w.ok(1, Request::SeqCreate { seq: 0 });
    let before: Vec<u64> = shown.iter().map(|at| w.host[at]).collect();
    w.ask_for(1, Request::Reserve { seq: 0, count: 60 }, 1000);
    w.pass(2000);
    assert_eq!(before, shown.iter().map(|at| w.host[at]).collect::<Vec<_>>());
    w.event(Event::SessionExited { session: 0 }).unwrap();
    assert_eq!(w.gone, [0]);
    w.fill(1, 0, 6, 1);
}

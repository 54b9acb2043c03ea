//! Faults of a lane while jobs wait for uses of all frames of its scan.

use kvtide_fake::*;
use kvtide_tiering::api::*;

const PLANES: u16 = 6;
/// First position of step 1.
const STEP: u64 = PLANES as u64;

type Pages = Vec<(BlockId, Vec<u64>)>;

/// Create a tier 0 slightly larger than the block being filled: five frames stream. The scan has progressed as far as possible for
/// a lane in step 1 that is at `plane`.
fn scanning_at(plane: u16) -> (World, Pages) {
    let mut cfg = config((0..PLANES).map(|_| full(4096)).collect());
    cfg.policy.scan_frames = 8;
    let mut w = World::new(cfg);
    w.attach(0, 1, &[11]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    let mut pages = w.fill(0, 0, 8, PLANES);
    let tail = w.ok(0, Request::Reserve { seq: 0, count: 1 }).list[0];
    pages.push((tail, (0..PLANES).map(|p| w.write(0, tail, p)).collect()));
    w.enter(0, 0, Some(STEP + u64::from(plane)));
    w.ok(0, Request::Step { lane: 0, step: 1, seqs: &[0] });
    (w, pages)
}

/// Return the page and use that a job's frame waits for.
fn promised(job: &Job) -> Option<(BlockId, u16, u64)> {
    match job {
        Job::CopyIn { victim: Some(Victim { block, plane, after: Some((_, pos)) }), .. } => {
            Some((*block, *plane, *pos))
        }
        _ => None,
    }
}

/// The page arrived while the fault was in flight, and a job already waits for this use of its frame. The lane reads the page
/// there. Another load would only take a frame from the next pages.
#[test]
fn a_fault_for_a_page_that_stays_until_its_use_asks_for_nothing() {
    let (mut w, pages) = scanning_at(0);
    let jobs = w.agents[&0].jobs.clone();
    let (block, plane, use_pos) = jobs.iter().find_map(|(_, job)| promised(job)).expect("a scan promises frames");
    assert!(w.read(0, block, plane).is_some());
    let index = pages.iter().position(|(b, _)| *b == block).unwrap() as u32;
    w.ok(0, Request::Fault { lane: 0, use_pos, seq: 0, index, plane, whole: false });
    assert_eq!(w.agents[&0].jobs, jobs, "nothing was called off or asked for");
}

/// Jobs wait for uses of all streaming frames that the lane reaches only after its fault, so one job is canceled. (This occurs if
/// the page arrived in time and an earlier fault took it.)
#[test]
fn a_fault_is_served_though_every_frame_is_promised_after_later_uses() {
    let (mut w, pages) = scanning_at(1);
    let jobs = &w.agents[&0].jobs;
    assert_eq!(jobs.len(), 5);
    assert!(jobs.iter().all(|(_, job)| promised(job).is_some_and(|(_, _, pos)| pos > STEP)), "{jobs:?}");
    let (block, contents) = &pages[0];
    assert_eq!(w.read(0, *block, 0), None);
    w.enter(0, 0, Some(STEP));
    w.ok(0, Request::Fault { lane: 0, use_pos: STEP, seq: 0, index: 0, plane: 0, whole: false });
    assert_eq!(w.read(0, *block, 0), Some(contents[0]));
    assert_eq!(w.core.counters().jobs_canceled, 1);
    // The page taken from the scan is read again.
    w.enter(0, 0, None);
    w.ok(0, Request::StepEnd { lane: 0, step: 1 });
    for step in 2..5 {
        w.step(0, 0, step, 0, &pages, PLANES);
    }
}

/// Tier 0 is full, in part of pages of a sequence that the last step read. A lane that keeps every page of a plane until it has all of them
/// (a device waits for them in its stream) gets them, though the scan lets pages wait for each other's use.
#[test]
fn a_lane_that_needs_a_whole_plane_gets_it_while_pages_of_others_fill_tier_0() {
    let waited: usize = (6..=10).map(whole_planes).sum();
    assert!(waited > 0, "no page waited for the use of another: the test shows nothing");
}

/// Take steps of one of two sequences of six pages. Return how many pages waited for the use of another in the same plane.
fn whole_planes(frames: u32) -> usize {
    let mut cfg = config(vec![full(4096)]);
    cfg.policy.scan_frames = 4;
    let mut w = World::new(cfg);
    w.attach(0, 1, &[frames]);
    let texts = [0, 1].map(|seq| {
        w.ok(0, Request::SeqCreate { seq });
        w.fill(0, seq, 6, 1)
    });
    w.ok(0, Request::Step { lane: 0, step: 1, seqs: &[0, 1] });
    w.ok(0, Request::StepEnd { lane: 0, step: 1 });
    let mut waited = 0;
    for (step, seq) in [(2, 0), (3, 1), (4, 0), (5, 1)] {
        w.enter(0, 0, Some(step));
        w.ok(0, Request::Step { lane: 0, step, seqs: &[seq] });
        waited +=
            w.agents[&0].jobs.iter().filter(|(_, job)| promised(job).is_some_and(|(_, _, pos)| pos == step)).count();
        let pages = &texts[seq as usize];
        while let Some(at) = pages.iter().position(|(block, _)| w.read(0, *block, 0).is_none()) {
            w.ok(0, Request::Fault { lane: 0, use_pos: step, seq, index: at as u32, plane: 0, whole: true });
        }
        assert!(
            pages.iter().all(|(block, contents)| w.read(0, *block, 0) == Some(contents[0])),
            "step {step}, {frames} frames"
        );
        w.enter(0, 0, None);
        w.ok(0, Request::StepEnd { lane: 0, step });
    }
    waited
}

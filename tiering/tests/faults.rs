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

/// Blocks of each sequence whose planes are read as a whole.
const WHOLE: u32 = 6;

/// Create two sequences of [`WHOLE`] blocks, which one step has read.
fn two_texts(planes: u16, frames: u32, scan_frames: u32) -> (World, [Pages; 2]) {
    let mut cfg = config((0..planes).map(|_| full(4096)).collect());
    cfg.policy.scan_frames = scan_frames;
    let mut w = World::new(cfg);
    w.attach(0, 1, &[frames]);
    let texts = [0, 1].map(|seq| {
        w.ok(0, Request::SeqCreate { seq });
        w.fill(0, seq, WHOLE, planes)
    });
    w.ok(0, Request::Step { lane: 0, step: 1, seqs: &[0, 1] });
    w.ok(0, Request::StepEnd { lane: 0, step: 1 });
    (w, texts)
}

/// Move lane 0 to a position, where it has read no page.
fn lane_at(w: &mut World, pos: u64) {
    w.enter(0, 0, Some(pos));
    w.settle();
}

/// Return the index of the first page of a plane that the lane cannot read.
fn missing(w: &World, pages: &[(BlockId, Vec<u64>)], plane: u16) -> Option<u32> {
    pages.iter().position(|(block, _)| w.read(0, *block, plane).is_none()).map(|at| at as u32)
}

/// Tier 0 is full, in part of pages of a sequence that the last step read. A lane that keeps every page of a plane until it has all of them
/// (a device waits for them in its stream) gets them, though the scan lets pages wait for each other's use.
#[test]
fn a_lane_that_needs_a_whole_plane_gets_it_while_pages_of_others_fill_tier_0() {
    for (planes, scan_frames) in (1..=3).flat_map(|planes| [1, 2, 4, 8].map(|frames| (planes, frames))) {
        let waited: usize = (WHOLE..=4 * WHOLE).map(|frames| whole_planes(planes, frames, scan_frames, false)).sum();
        assert!(waited > 0, "no page waited for the use of another: the test shows nothing");
    }
}

/// The same behind gates: the lane stays at the position of the first plane, and gives up no page of complete planes until the step's
/// end.
#[test]
fn a_lane_that_needs_a_whole_step_gets_it_while_pages_of_others_fill_tier_0() {
    for (planes, scan_frames) in (2..=3).flat_map(|planes| [1, 2, 4, 8].map(|frames| (planes, frames))) {
        let fits = u32::from(planes) * WHOLE;
        (fits..=fits + 2 * WHOLE).for_each(|frames| _ = whole_planes(planes, frames, scan_frames, true));
    }
}

/// Take steps of one of two sequences, each of [`WHOLE`] pages a plane. Return how many pages waited for the use of another in the same
/// plane.
fn whole_planes(planes: u16, frames: u32, scan_frames: u32, gated: bool) -> usize {
    let (mut w, texts) = two_texts(planes, frames, scan_frames);
    let mut waited = 0;
    for (step, seq) in (2..).zip([0, 1, 0, 1, 1, 1, 0, 0]) {
        let (pages, first) = (&texts[seq as usize], step * u64::from(planes));
        w.enter(0, 0, Some(first));
        w.ok(0, Request::Step { lane: 0, step, seqs: &[seq] });
        for plane in 0..planes {
            let use_pos = first + if gated { 0 } else { u64::from(plane) };
            lane_at(&mut w, use_pos);
            let waits = |job: &Job| promised(job).is_some_and(|(_, _, pos)| pos == use_pos);
            waited += w.agents[&0].jobs.iter().filter(|(_, job)| waits(job)).count();
            for fault in 0.. {
                let Some(index) = missing(&w, pages, plane) else { break };
                assert!(fault < 2 * WHOLE, "step {step}, plane {plane} of {planes}, {frames} frames: pages take turns");
                w.ok(0, Request::Fault { lane: 0, use_pos, seq, index, plane, whole: true });
            }
            for of in if gated { 0 } else { plane }..=plane {
                assert_eq!(missing(&w, pages, of), None, "step {step}, plane {of}, {frames} frames: a page is gone");
            }
        }
        w.enter(0, 0, None);
        w.ok(0, Request::StepEnd { lane: 0, step });
    }
    waited
}

/// A lane is past pages of the first plane. Their frames serve its fault in the second one, before the agent has stored any of the pages
/// that are only in tier 0.
#[test]
fn a_lane_that_needs_a_whole_plane_does_not_wait_until_pages_of_others_are_stored() {
    let (mut w, texts) = two_texts(2, 10, 4);
    let pages = &texts[0];
    w.enter(0, 0, Some(4));
    w.ok(0, Request::Step { lane: 0, step: 2, seqs: &[0] });
    while let Some(index) = missing(&w, pages, 0) {
        w.ok(0, Request::Fault { lane: 0, use_pos: 4, seq: 0, index, plane: 0, whole: true });
    }
    lane_at(&mut w, 5);
    w.fill(0, 1, 1, 2);
    w.eager = false;
    let index = missing(&w, pages, 1).expect("tier 0 is smaller than the step");
    w.ask(0, Request::Fault { lane: 0, use_pos: 5, seq: 0, index, plane: 1, whole: true });
    // The load that the scan had let wait for a page of the same plane is canceled.
    w.run_job(0);
    w.settle();
    let (wanted, _) = pages[index as usize];
    let mut jobs = w.agents[&0].jobs.iter().map(|(_, job)| *job);
    let victim = jobs.find_map(|job| match job {
        Job::CopyIn { block, plane: 1, victim, .. } if block == wanted => victim,
        _ => None,
    });
    let consumed = |v: &Victim| v.plane == 0 && pages.iter().any(|(block, _)| *block == v.block);
    assert!(victim.as_ref().is_some_and(consumed), "{victim:?}");
}

/// The engine pinned a page when a load was to take its frame, so the load took another one. The last page of the plane takes the frame
/// once the page is not pinned any more.
#[test]
fn a_lane_that_needs_a_whole_plane_tries_frames_again_that_the_engine_pinned() {
    let (mut w, texts) = two_texts(1, WHOLE, 4);
    let pages = &texts[0];
    w.eager = false;
    w.enter(0, 0, Some(2));
    w.ok(0, Request::Step { lane: 0, step: 2, seqs: &[0] });
    let index = missing(&w, pages, 0).expect("tier 0 shows pages of the other sequence");
    w.ask(0, Request::Fault { lane: 0, use_pos: 2, seq: 0, index, plane: 0, whole: true });
    // The load that the scan had let wait is canceled; the next one finds a pinned page.
    w.run_job(0);
    w.settle();
    w.fail_next.push_back(Status::Busy);
    w.run_job(0);
    assert_eq!(w.core.counters().jobs_busy, 1);
    w.eager = true;
    w.settle();
    for fault in 0.. {
        let Some(index) = missing(&w, pages, 0) else { break };
        assert!(fault < 2 * WHOLE, "page {index} gets no frame");
        w.ask(0, Request::Fault { lane: 0, use_pos: 2, seq: 0, index, plane: 0, whole: true });
        w.now += 1_000;
        w.event(Event::Tick).unwrap();
    }
}

/// Random numbers (xorshift).
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn chance(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// Sequences with a common prefix, steps with one or two of them in turn, jobs that end late, another sequence's unsealed block: a lane gets
/// each whole plane, and behind gates the whole step, with few faults.
#[test]
fn a_lane_that_needs_whole_planes_gets_them_whatever_filled_tier_0() {
    for seed in 1..=500 {
        let mut rng = Rng(seed << 32 | seed);
        (0..8).for_each(|_| _ = rng.below(2));
        steps_at_random(&mut rng, &format!("seed {seed}"));
    }
}

fn steps_at_random(rng: &mut Rng, what: &str) {
    let (planes, gated) = (1 + rng.below(3) as u16, rng.chance());
    let (prefix, lengths) = (rng.below(3) as u32, [0; 3].map(|_| 2 + rng.below(5) as u32));
    let step_blocks = 2 * prefix + lengths.iter().sum::<u32>() - lengths.iter().min().unwrap();
    let frames = step_blocks * if gated { u32::from(planes) } else { 1 } + u32::from(planes) + rng.below(6) as u32;
    let mut cfg = config((0..planes).map(|_| full(4096)).collect());
    cfg.policy.scan_frames = 1 + rng.below(8) as u32;
    let mut w = World::new(cfg);
    w.attach(0, 1, &[frames]);
    w.ok(0, Request::SeqCreate { seq: 9 });
    let (head, hashes) = (w.fill(0, 9, prefix, planes), [1, 2]);
    let hashes = &hashes[..prefix as usize];
    if prefix > 0 {
        w.ok(0, Request::Publish { seq: 9, first: 0, parent: 0, hashes, level: Level::Published });
    }
    let mut texts: Vec<Pages> = Vec::new();
    for (seq, length) in (0..).zip(lengths) {
        w.ok(0, Request::SeqCreate { seq });
        if prefix > 0 {
            w.ok(0, Request::AttachPrefix { seq, hashes, asked: Some(0) });
        }
        texts.push([head.clone(), w.fill(0, seq, length, planes)].concat());
    }
    if rng.chance() {
        w.ok(0, Request::SeqDrop { seq: 9 });
    }
    if frames / 2 >= u32::from(planes) && rng.chance() {
        w.ok(0, Request::SeqCreate { seq: 8 });
        w.ok(0, Request::Reserve { seq: 8, count: 1 });
    }
    let mut seqs = vec![0];
    let mut step = 0;
    for _ in 0..12 {
        step += 1 + rng.below(5) / 4;
        if rng.chance() {
            let first = rng.below(3) as u32;
            seqs = (0..1 + rng.below(2) as u32).map(|i| (first + i) % 3).collect();
        }
        let first = step * u64::from(planes);
        w.eager = rng.chance();
        w.enter(0, 0, Some(first));
        w.ok(0, Request::Step { lane: 0, step, seqs: &seqs });
        for plane in 0..planes {
            let use_pos = first + if gated { 0 } else { u64::from(plane) };
            lane_at(&mut w, use_pos);
            let gap = |w: &World, of: u16| {
                seqs.iter().find_map(|&seq| missing(w, &texts[seq as usize], of).map(|index| (seq, index)))
            };
            let mut fault: Option<u16> = None;
            for turn in 0.. {
                let Some((seq, index)) = gap(&w, plane) else { break };
                assert!(
                    turn < 300,
                    "{what}: step {step}, plane {plane}: page {index} of {seq}: {:?}",
                    w.agents[&0].jobs
                );
                if fault.is_none_or(|tag| w.answer(0, tag).is_some()) {
                    fault = Some(w.ask(0, Request::Fault { lane: 0, use_pos, seq, index, plane, whole: true }));
                }
                for _ in 0..if w.eager { 0 } else { 1 + rng.below(3) } {
                    w.run_job(0);
                    w.settle();
                }
            }
            let complete = if gated { 0 } else { plane }..=plane;
            complete.for_each(|of| assert_eq!(gap(&w, of), None, "{what}: step {step}, plane {of}: a page is gone"));
        }
        w.enter(0, 0, None);
        w.ok(0, Request::StepEnd { lane: 0, step });
        w.eager = true;
        w.settle();
    }
}

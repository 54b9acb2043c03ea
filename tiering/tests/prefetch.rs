//! Attention determines which pages of `approx` sequences stay in tier 0; reports of engines change no result.

use kvtide_fake::*;
use kvtide_tiering::api::*;

const PLANES: u16 = 3;

/// ln of a share, rounded down to the seven leading bits of a binary16: sufficient for tests.
fn ln(share: f64) -> u16 {
    let x = -share.ln();
    if x <= 0.0 {
        return 0x8000;
    }
    let exponent = x.log2().floor();
    let fraction = ((x / exponent.exp2() - 1.0) * 1024.0) as u16;
    0x8000 | ((exponent as i32 + 15) as u16) << 10 | fraction
}

struct Engine {
    w: World,
    pages: Vec<(BlockId, Vec<u64>)>,
    step: u64,
}

impl Engine {
    /// Create a sequence of 64 sealed blocks with a tier 0 of `frames`.
    fn new(frames: u32) -> Engine {
        Engine::over(frames, None)
    }

    /// The same with a host tier of `host` frames, and the rest on NVMe.
    fn over(frames: u32, host: Option<u32>) -> Engine {
        let mut cfg = config((0..PLANES).map(|_| full(1000)).collect());
        if let Some(host) = host {
            cfg.limits.host_bytes_max = u64::from(host) * 1000;
            cfg.limits.nvme_bytes_max = 80 * u64::from(PLANES) * 1000;
        }
        let mut w = World::new(cfg);
        if let Some(host) = host {
            (w.node.frames, w.node.slab_frames) = (vec![host], host);
            (w.disk.node_slots, w.disk.slab_slots) = (80, 80);
        }
        w.attach(0, 1, &[frames]);
        w.ok(0, Request::SeqCreate { seq: 0 });
        let pages = w.fill(0, 0, 64, PLANES);
        w.ok(0, Request::Contract { seq: 0, contract: Contract::Approx { permille: 250 } });
        Engine { w, pages, step: 0 }
    }

    fn resident(&self, index: usize, plane: u16) -> bool {
        self.w.read(0, self.pages[index].0, plane).is_some()
    }

    fn scores(&mut self, kind: ScoreKind, plane: u16, step: u64, best: &[u32]) {
        // Absent pages have no share: the shares of the others add up to one.
        let (share, rest) = if best.is_empty() { (0.0, 1.0) } else { (0.9 / best.len() as f64, 0.1) };
        let top: Vec<_> = best.iter().map(|&i| (i, share)).collect();
        self.tell(kind, plane, step, &top, rest);
    }

    fn tell(&mut self, kind: ScoreKind, plane: u16, step: u64, top: &[(u32, f64)], rest: f64) {
        let top: Vec<_> = top.iter().map(|&(i, share)| (i, ln(share))).collect();
        self.w.now += 100;
        self.w.event(Event::Scores { session: 0, seq: 0, plane, step, kind, rest: ln(rest), top: &top }).unwrap();
    }

    /// Run a step with attention to `best(plane)` and look-aheads; return how many of those pages were resident in time.
    fn step(&mut self, best: impl Fn(u16, u64) -> Vec<u32>) -> usize {
        self.step += 1;
        let step = self.step;
        self.w.ok(0, Request::Step { lane: 0, step, seqs: &[0] });
        let mut found = 0;
        for plane in 0..PLANES {
            if plane + 1 < PLANES {
                self.scores(ScoreKind::Ahead, plane + 1, step, &best(plane + 1, step));
            }
            let wanted = best(plane, step);
            let there: Vec<u32> = wanted.into_iter().filter(|&i| self.resident(i as usize, plane)).collect();
            found += there.len();
            self.scores(ScoreKind::Query, plane, step, &best(plane, step));
            self.scores(ScoreKind::Mass, plane, step, &there);
        }
        self.w.ok(0, Request::StepEnd { lane: 0, step });
        found
    }
}

/// Four pages that change at every eighth step.
fn wandering(plane: u16, step: u64) -> Vec<u32> {
    (0..4).map(|i| 3 + ((step as u32 / 8 * 11 + u32::from(plane) * 7 + i * 13) % 58)).collect()
}

#[test]
fn what_attention_wants_is_there_before_it_is_read() {
    let mut e = Engine::new(48);
    for _ in 0..16 {
        e.step(wandering);
    }
    let found: usize = (0..32).map(|_| e.step(wandering)).sum();
    let all = 32 * 4 * usize::from(PLANES);
    // Plane 0 has no look-ahead: a new page is detected only after it was read.
    assert!(found * 3 >= all * 2 - all / 8, "{found} of {all}");
    for step in 0..8 {
        for (plane, index) in [(1, 0), (2, 1)] {
            assert!(e.resident(wandering(plane, e.step)[index] as usize, plane), "step {step}");
        }
        e.step(wandering);
    }
    let c = e.w.core.counters();
    assert!(c.attention_loads > 0 && c.attention_used > c.attention_wasted, "{c:?}");
    assert_eq!((c.faults, c.scores_refused, c.scores_late), (0, 0, 0));
    for index in [0, 62, 63] {
        assert!((0..PLANES).all(|plane| e.resident(index, plane)), "sinks and recency stay");
    }
}

#[test]
fn nothing_moves_while_everything_fits() {
    let mut e = Engine::new(220);
    (0..8).for_each(|_| _ = e.step(wandering));
    let c = e.w.core.counters();
    assert_eq!((c.attention_loads, c.host_to_tier0.total_pages(), c.evictions), (0, 0, 0));
    assert!(c.scores > 0);
}

#[test]
fn exact_sequences_are_scanned_as_ever() {
    let mut e = Engine::new(48);
    (0..8).for_each(|_| _ = e.step(wandering));
    e.w.ok(0, Request::Contract { seq: 0, contract: Contract::Exact });
    let loads = e.w.core.counters().attention_loads;
    let pages = std::mem::take(&mut e.pages);
    e.w.step(0, 0, 100, 0, &pages, PLANES);
    e.w.step(0, 0, 101, 0, &pages, PLANES);
    assert_eq!(e.w.core.counters().attention_loads, loads);
}

#[test]
fn claims_that_cannot_be_true_change_nothing() {
    let mut e = Engine::new(48);
    (0..4).for_each(|_| _ = e.step(wandering));
    let before = e.w.core.trace();
    let event =
        |seq, plane, step, rest, top| Event::Scores { session: 0, seq, plane, step, kind: ScoreKind::Mass, rest, top };
    let fine: &[(u32, u16)] = &[(0, 0xbc00)];
    for claim in [
        event(1, 0, 9, 0xbc00, fine),
        event(u32::MAX, 0, 9, 0xbc00, fine),
        event(0, PLANES, 9, 0xbc00, fine),
        event(0, 0, u64::MAX, 0xbc00, fine),
        event(0, 0, 9, 0x3c00, fine),
        event(0, 0, 9, 0xbc00, &[(0, 0x7e00)]),
        event(0, 0, 9, 0xbc00, &[(64, 0xbc00)]),
    ] {
        e.w.event(claim).unwrap();
    }
    assert_eq!((e.w.core.counters().scores_refused, e.w.core.trace()), (7, before));
    e.w.event(event(0, 0, 2, 0xbc00, fine)).unwrap();
    assert_eq!((e.w.core.counters().scores_late, e.w.core.trace()), (1, before));
}

#[test]
fn contracts_are_checked() {
    let mut e = Engine::new(48);
    let mut call = |seq, contract| e.w.call(0, Request::Contract { seq, contract }).status;
    assert_eq!(call(0, Contract::Approx { permille: 0 }), Status::Range);
    assert_eq!(call(0, Contract::Approx { permille: 1001 }), Status::Range);
    assert_eq!(call(5, Contract::Exact), Status::NotFound);
    assert_eq!(call(0, Contract::Approx { permille: 1000 }), Status::Ok);
}

/// A page in neither tier 0 nor host is read as soon as the look-ahead names it, and loaded into tier 0 when it has arrived.
#[test]
fn what_is_on_disk_alone_comes_in_two_moves() {
    let mut e = Engine::over(48, Some(96));
    for _ in 0..16 {
        e.step(wandering);
    }
    let read = e.w.disk.read;
    let found: usize = (0..32).map(|_| e.step(wandering)).sum();
    let all = 32 * 4 * usize::from(PLANES);
    assert!(found * 3 >= all * 2 - all / 8, "{found} of {all}");
    assert!(e.w.disk.read > read && e.w.core.counters().faults == 0);
    e.w.core.check().unwrap();
}

/// A page that a look-ahead named and that was read first is loaded when it arrives, before its plane is ranked again.
#[test]
fn what_was_read_for_a_step_goes_on_by_itself() {
    let mut e = Engine::over(48, Some(96));
    (0..16).for_each(|_| _ = e.step(wandering));
    let told = |e: &mut Engine, wanted: &[u32]| e.scores(ScoreKind::Ahead, 1, e.step + 1, wanted);
    // Search for a page that is in neither tier 0 nor host: a read of it is in flight, and not completed yet.
    e.w.eager = false;
    let far = (3..60).find(|&index| {
        told(&mut e, &[index]);
        let reads = e.w.disk.flight.iter().any(|t| t.kind == IoKind::Read);
        if !reads {
            while e.w.run_job(0) {}
            e.w.settle();
        }
        reads
    });
    let far = far.expect("a third of the pages are on NVMe alone");
    assert!(!e.resident(far as usize, 1));
    let block = e.pages[far as usize].0;
    let loads = |e: &Engine| {
        let wanted = |job: &Job| matches!(job, Job::CopyIn { block: b, plane: 1, .. } if *b == block);
        e.w.agents[&0].jobs.iter().filter(|(_, job)| wanted(job)).count()
    };
    assert_eq!(loads(&e), 0);
    while e.w.run_io(0) {}
    e.w.settle();
    assert_eq!(loads(&e), 1, "the read has ended");
    e.w.eager = true;
    e.w.settle();
    assert!(e.resident(far as usize, 1));
    e.w.core.check().unwrap();
}

/// A page that was unread for long, and left tier 0, comes back when the digests for the step's own queries rate it high, although
/// its history is low and there is no look-ahead. Otherwise an unread page would stay unread forever.
#[test]
fn what_was_not_read_for_long_comes_back_when_its_digest_says_so() {
    let mut e = Engine::new(48);
    let stays = |plane: u16| (0..6).map(|i| 4 + u32::from(plane) * 6 + i).collect::<Vec<u32>>();
    let step = |e: &mut Engine, asked: &[u32]| {
        e.step += 1;
        let step = e.step;
        e.w.ok(0, Request::Step { lane: 0, step, seqs: &[0] });
        for plane in 0..PLANES {
            let all: Vec<u32> = stays(plane).into_iter().chain(asked.iter().copied()).collect();
            e.scores(ScoreKind::Query, plane, step, &all);
            let there: Vec<u32> = all.into_iter().filter(|&i| e.resident(i as usize, plane)).collect();
            e.scores(ScoreKind::Mass, plane, step, &there);
        }
        e.w.ok(0, Request::StepEnd { lane: 0, step });
    };
    (0..64).for_each(|_| step(&mut e, &[]));
    let probe = (30..60).find(|&i| (0..PLANES).all(|plane| !e.resident(i, plane))).expect("most are not there") as u32;
    (0..16).for_each(|_| step(&mut e, &[]));
    assert!((0..PLANES).all(|plane| !e.resident(probe as usize, plane)), "nothing says that it is wanted");
    (0..16).for_each(|_| step(&mut e, &[probe]));
    let there: Vec<bool> = (0..PLANES).map(|plane| e.resident(probe as usize, plane)).collect();
    assert_eq!(there, [true; PLANES as usize], "{:?}", e.w.core.counters());
}

/// A load is canceled before it moves bytes if a later ranking does not contain its page.
#[test]
fn a_load_that_nobody_wants_any_more_is_called_off() {
    let mut e = Engine::new(48);
    (0..24).for_each(|_| _ = e.step(|_, _| (4..12).collect()));
    // No job is executed from now on. Each look-ahead names other pages; tier 0 has no room for all.
    e.w.eager = false;
    let canceled = (0..9u32).any(|round| {
        let first = 12 + 5 * round;
        e.scores(ScoreKind::Ahead, 1, e.step + 1 + u64::from(round), &(first..first + 5).collect::<Vec<_>>());
        e.w.core.counters().attention_canceled > 0
    });
    assert!(canceled, "{:?}", e.w.core.counters());
    // An agent processes cancellations before it starts other jobs.
    let jobs = &mut e.w.agents.get_mut(&0).unwrap().jobs;
    jobs.make_contiguous().sort_by_key(|(_, job)| !matches!(job, Job::Cancel { .. }));
    let called_off = |id: &u32| jobs.iter().any(|(_, job)| matches!(job, Job::Cancel { job } if job == id));
    let blocks: Vec<BlockId> = jobs
        .iter()
        .filter_map(|(id, job)| match job {
            Job::CopyIn { block, .. } if called_off(id) => Some(*block),
            _ => None,
        })
        .collect();
    assert!(!blocks.is_empty());
    e.w.eager = true;
    e.w.settle();
    assert!(blocks.iter().all(|&block| e.w.read(0, block, 1).is_none()), "a canceled load came in spite of it");
    assert!(e.w.core.check().is_ok());
}

/// Pages that differ only by noise do not displace each other.
#[test]
fn noise_moves_nothing() {
    let mut e = Engine::new(48);
    let noisy = |step: u64, at: u32| 0.015 * (1.0 + 0.03 * f64::from((at * 7 + step as u32 * 13) % 5));
    let mut loads = [0; 2];
    for step in 1..=80u64 {
        e.w.ok(0, Request::Step { lane: 0, step, seqs: &[0] });
        for plane in 0..PLANES {
            let all: Vec<(u32, f64)> = (0..64).map(|at| (at, noisy(step, at))).collect();
            if plane + 1 < PLANES {
                e.tell(ScoreKind::Ahead, plane + 1, step, &all, 0.0001);
            }
            e.tell(ScoreKind::Query, plane, step, &all, 0.0001);
            let there: Vec<(u32, f64)> = all.into_iter().filter(|t| e.resident(t.0 as usize, plane)).collect();
            let sum: f64 = there.iter().map(|t| t.1).sum();
            let there: Vec<(u32, f64)> = there.into_iter().map(|t| (t.0, t.1 / sum)).collect();
            e.tell(ScoreKind::Mass, plane, step, &there, 0.0001);
        }
        e.w.ok(0, Request::StepEnd { lane: 0, step });
        loads[usize::from(step > 40)] = e.w.core.counters().attention_loads;
    }
    assert!(loads[1] - loads[0] < 40, "{} loads in 40 steps of 3 planes", loads[1] - loads[0]);
}

/// Look-aheads that are always wrong soon cause few loads.
#[test]
fn wrong_predictions_cost_less_and_less() {
    let mut e = Engine::new(48);
    let mut loads = Vec::new();
    for step in 1..=110u64 {
        e.w.ok(0, Request::Step { lane: 0, step, seqs: &[0] });
        // A slow link.
        e.w.eager = false;
        for plane in 0..PLANES {
            if plane + 1 < PLANES {
                let guess = |i: u32| 3 + (step as u32 * 10 + u32::from(plane + 1) * 5 + i) % 58;
                e.scores(ScoreKind::Ahead, plane + 1, step, &(0..10).map(guess).collect::<Vec<_>>());
            }
            let there: Vec<u32> = (3..6).filter(|&i| e.resident(i as usize, plane)).collect();
            e.scores(ScoreKind::Mass, plane, step, &there);
            for _ in 0..200 {
                e.w.now += 20;
                if !e.w.run_job(0) {
                    break;
                }
                e.w.settle();
            }
        }
        e.w.eager = true;
        e.w.ok(0, Request::StepEnd { lane: 0, step });
        loads.push(e.w.core.counters().attention_loads);
    }
    assert!(loads[0] > 0, "the first look-aheads are believed");
    let (late, named) = (loads[109] - loads[89], 20 * 10 * (u64::from(PLANES) - 1));
    assert!(4 * late < named, "{late} loads in 20 steps, in which {named} pages were named");
}

/// Pages that attention did not need stay readable: an exact reader gets all of them as they were written.
#[test]
fn what_was_demoted_is_read_again_with_its_contents() {
    let mut e = Engine::new(48);
    (0..24).for_each(|_| _ = e.step(wandering));
    let c = e.w.core.counters();
    assert_eq!((c.pages_discarded, c.pages_lost), (0, 0));
    e.w.ok(0, Request::Contract { seq: 0, contract: Contract::Exact });
    for (index, (block, contents)) in e.pages.clone().iter().enumerate() {
        for plane in 0..PLANES {
            let fault = Request::Fault { lane: 0, use_pos: 0, seq: 0, index: index as u32, plane, whole: false };
            e.w.ok(0, fault);
            assert_eq!(e.w.read(0, *block, plane), Some(contents[usize::from(plane)]));
        }
    }
    e.w.core.check().unwrap();
    e.w.ok(0, Request::SeqDrop { seq: 0 });
    assert!(e.w.core.check().is_ok() && e.w.core.occupancy().blocks == 0);
}

/// More new pages than a ranking may request before a link is measured.
fn asks_within_its_quota() {
    let mut e = Engine::new(60);
    let elsewhere = |step: u64| (0..12).map(|i| 2 + (step as u32 * 17 + i) % 60).collect::<Vec<u32>>();
    (0..16).for_each(|_| _ = e.step(|_, step| elsewhere(step)));
    let before = e.w.core.counters().attention_loads;
    e.scores(ScoreKind::Ahead, 1, 17, &elsewhere(17));
    let asked = e.w.core.counters().attention_loads - before;
    assert!((1..=8).contains(&asked), "{asked} loads");
}

/// If the pages of a sequence fit again, the steps load them, not the predictions.
fn ranks_nothing_where_everything_fits() {
    let mut w = World::new(config((0..PLANES).map(|_| full(1000)).collect()));
    w.attach(0, 1, &[220]);
    w.ok(0, Request::Tier0Resize { class: 0, frames: 48 });
    w.ok(0, Request::SeqCreate { seq: 0 });
    let pages = w.fill(0, 0, 64, PLANES);
    w.ok(0, Request::Tier0Resize { class: 0, frames: 220 });
    w.ok(0, Request::Contract { seq: 0, contract: Contract::Approx { permille: 250 } });
    let mut e = Engine { w, pages, step: 0 };
    for step in 1..8 {
        e.scores(ScoreKind::Ahead, 1, step, &wandering(1, step));
        e.scores(ScoreKind::Mass, 1, step, &wandering(1, step));
    }
    assert_eq!(e.w.core.counters().attention_loads, 0);
}

/// Beside a step that reads its whole sequence, predictions use the remaining frames.
fn leaves_what_a_running_step_needs() {
    let mut w = World::new(config((0..PLANES).map(|_| full(1000)).collect()));
    w.attach(0, 2, &[80]);
    w.ok(0, Request::SeqCreate { seq: 1 });
    let other = w.fill(0, 1, 8, PLANES);
    w.ok(0, Request::SeqCreate { seq: 0 });
    let pages = w.fill(0, 0, 64, PLANES);
    w.ok(0, Request::Contract { seq: 0, contract: Contract::Approx { permille: 250 } });
    let mut e = Engine { w, pages, step: 0 };
    e.w.step(0, 1, 1, 1, &other, PLANES);
    e.w.ok(0, Request::Step { lane: 1, step: 2, seqs: &[1] });
    let there = |e: &Engine| other.iter().all(|(block, _)| (0..PLANES).all(|p| e.w.read(0, *block, p).is_some()));
    assert!(there(&e));
    for _ in 0..24 {
        e.step(wandering);
        assert!(there(&e), "step {}", e.step);
    }
    assert!(e.w.core.counters().attention_loads > 0);
}

#[test]
fn predictions_ask_within_their_quota() {
    asks_within_its_quota();
}

#[test]
fn nothing_is_ranked_where_everything_fits() {
    ranks_nothing_where_everything_fits();
}

#[test]
fn a_running_step_keeps_what_it_needs() {
    leaves_what_a_running_step_needs();
}

/// Faults that cost only time: each makes a test of this file fail.
#[cfg(feature = "mutants")]
#[test]
fn faults_that_cost_time_are_noticed() {
    use kvtide_tiering::mutants::{self, Mutant};
    let scenario = |mutant| match mutant {
        Mutant::PrefetchUnbounded => asks_within_its_quota,
        Mutant::PrefetchUnpressed => ranks_nothing_where_everything_fits,
        Mutant::CancelForgotten => a_load_that_nobody_wants_any_more_is_called_off,
        Mutant::PromotionTakesNeeded => leaves_what_a_running_step_needs,
        Mutant::RankedBackwards | Mutant::MassForgotten => what_attention_wants_is_there_before_it_is_read,
        other => panic!("no test for {other:?}"),
    };
    // Others: tests/queued.rs, tests/blocks.rs, tests/heal.rs
    let scheduled = [Mutant::ScheduledTakesNeeded, Mutant::ScheduledOutOfOrder, Mutant::ScheduledIgnoresDue];
    let others = [&scheduled[..], &[Mutant::DropsParentsOfStores, Mutant::PartialStays]].concat();
    for &mutant in Mutant::SLOW.iter().filter(|mutant| !others.contains(mutant)) {
        let test: fn() = scenario(mutant);
        test();
        mutants::select(Some(mutant));
        let noticed = std::panic::catch_unwind(test).is_err();
        mutants::select(None);
        assert!(noticed, "{mutant:?}");
    }
}

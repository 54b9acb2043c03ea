//! Attention drives what `approx` sequences keep in tier 0; whatever engines claim, nothing else changes.
#![allow(clippy::unwrap_used)]

mod fake;
use fake::*;
use kvtide_tiering::api::*;

const PLANES: u16 = 3;

/// ln of a share, rounded down to a binary16's seven leading bits: enough for tests.
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
    /// A sequence of 64 blocks in a tier 0 of `frames`, all sealed.
    fn new(frames: u32, policy: Attention) -> Engine {
        let mut cfg = config((0..PLANES).map(|_| full(1000)).collect());
        cfg.policy.attention = policy;
        let mut w = World::new(cfg);
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
        // What was not there has no share: the others' add up to one.
        let (share, rest) = if best.is_empty() { (0.0, 1.0) } else { (0.9 / best.len() as f64, 0.1) };
        let top: Vec<_> = best.iter().map(|&i| (i, ln(share))).collect();
        self.w.now += 100;
        self.w.event(Event::Scores { session: 0, seq: 0, plane, step, kind, rest: ln(rest), top: &top }).unwrap();
    }

    /// A step whose attention wants `best(plane)`, with look-aheads; returns how many of those were there when they were read.
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

/// Four pages that move on every eighth step.
fn wandering(plane: u16, step: u64) -> Vec<u32> {
    (0..4).map(|i| 3 + ((step as u32 / 8 * 11 + u32::from(plane) * 7 + i * 13) % 58)).collect()
}

#[test]
fn what_attention_wants_is_there_before_it_is_read() {
    let mut e = Engine::new(48, Attention::default());
    for _ in 0..16 {
        e.step(wandering);
    }
    let found: usize = (0..32).map(|_| e.step(wandering)).sum();
    let all = 32 * 4 * usize::from(PLANES);
    // Plane 0 has no look-ahead: it learns of a new place only once a page of it is read.
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
    let mut e = Engine::new(220, Attention::default());
    (0..8).for_each(|_| _ = e.step(wandering));
    let c = e.w.core.counters();
    assert_eq!((c.attention_loads, c.host_to_tier0.total_pages(), c.evictions), (0, 0, 0));
    assert!(c.scores > 0);
}

#[test]
fn exact_sequences_are_scanned_as_ever() {
    let mut e = Engine::new(48, Attention::default());
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
    let mut e = Engine::new(48, Attention::default());
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
    let mut e = Engine::new(48, Attention::default());
    let mut call = |seq, contract| e.w.call(0, Request::Contract { seq, contract }).status;
    assert_eq!(call(0, Contract::Approx { permille: 0 }), Status::Range);
    assert_eq!(call(0, Contract::Approx { permille: 1001 }), Status::Range);
    assert_eq!(call(0, Contract::Bounded { ppm: 1_000_001 }), Status::Range);
    assert_eq!(call(5, Contract::Exact), Status::NotFound);
    assert_eq!(call(0, Contract::Bounded { ppm: 10 }), Status::Ok);
}

#[test]
fn every_policy_demotes_and_only_drop_gives_up() {
    for policy in Scoring::ALL {
        for drop in [false, true] {
            let mut e = Engine::new(48, Attention { policy, drop, ..Attention::default() });
            (0..24).for_each(|_| _ = e.step(wandering));
            let c = *e.w.core.counters();
            assert_eq!((c.retired > 0, c.pages_lost), (drop, 0), "{policy:?}");
            e.w.core.check().unwrap();
            e.w.ok(0, Request::SeqDrop { seq: 0 });
            assert!(e.w.core.check().is_ok() && e.w.core.occupancy().blocks == 0, "{policy:?}");
        }
    }
}

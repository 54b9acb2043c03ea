//! The thinnest whole path: attach, reserve, commit, clean, evict, fault, scan, drop.
#![allow(clippy::unwrap_used)]

mod fake;
use fake::*;
use kvtide_tiering::api::*;

#[test]
fn everything_fits() {
    let mut w = World::new(config(vec![full(1000), full(1000), full(576)]));
    w.attach(0, 1, &[64, 32]);
    w.ok(0, Request::SeqCreate { seq: 3 });
    let pages = w.fill(0, 3, 8, 3);
    assert_eq!(w.step(0, 0, 1, 3, &pages, 3), 0);
    w.ok(0, Request::SeqDrop { seq: 3 });
    assert!(w.agents[&0].table.is_empty());
    assert_eq!(w.call(0, Request::SeqDrop { seq: 3 }).status, Status::NotFound);
}

#[test]
fn more_than_tier0_is_scanned() {
    let planes = 4u16;
    let mut w = World::new(config((0..planes).map(|_| full(4096)).collect()));
    w.eager = true;
    w.attach(0, 1, &[24]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    let pages = w.fill(0, 0, 20, planes);
    let mut loads = Vec::new();
    for step in 1..8 {
        loads.push(w.step(0, 0, step, 0, &pages, planes));
    }
    let needed = 20 * u64::from(planes);
    // The first step also brings in what the second will read first.
    let optimum = needed - 24 + 4;
    assert_eq!(loads[0], optimum + 4);
    assert!(loads[1..].iter().all(|&n| n == optimum), "{loads:?}");
    assert_eq!(w.faults, 0);
}

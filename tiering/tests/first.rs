//! The shortest complete path: attach, reserve, commit, write back, evict, fault, scan, drop.

use kvtide_fake::*;
use kvtide_tiering::api::*;

#[test]
fn everything_fits() {
    let mut w = World::new(config(vec![full(1000), full(1000), full(576)]));
    w.attach(0, 1, &[64, 32]);
    w.ok(0, Request::SeqCreate { seq: 3 });
    let pages = w.fill(0, 3, 8, 3);
    assert_eq!(w.step(0, 0, 1, 3, &pages, 3), 0);
    w.ok(0, Request::SeqDrop { seq: 3 });
    assert_eq!(w.agents[&0].table.iter().count(), 0);
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
    // The first step also loads the pages that the second reads first.
    let optimum = needed - 24 + 4;
    assert_eq!(loads[0], optimum + 4);
    assert!(loads[1..].iter().all(|&n| n == optimum), "{loads:?}");
    assert_eq!(w.faults, 0);
}

/// Tier 0 and host together hold exactly the live pages: every step completes, and a request that does not fit fails at once.
#[test]
fn tight_tiers_never_hang() {
    let planes = 6u16;
    for (tier0, host, scan) in [(36, 72, 4), (11, 96, 8), (36, 20, 8), (24, 200, 1), (13, 60, 2)] {
        let mut cfg = config((0..planes).map(|_| full(4096)).collect());
        cfg.policy.scan_frames = scan;
        cfg.limits.host_bytes_max = u64::from(host) * 4096;
        let mut w = World::new(cfg);
        w.node.frames = vec![host];
        w.node.slab_frames = 9;
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
        let fits = (tier0 - scan.max(2).min(tier0 / 2) + host) / u32::from(planes);
        assert_eq!(pages.len() as u32, fits, "tier 0 {tier0}, host {host}, scan {scan}");
        for _ in 0..4 {
            step += 1;
            w.step(0, 0, step, 0, &pages, planes);
        }
    }
}

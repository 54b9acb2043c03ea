//! Changes of the policy while the core runs.

use kvtide_fake::*;
use kvtide_tiering::Error;
use kvtide_tiering::api::*;

/// A world with a tier 0 of 16 frames, half full of sealed pages, without write-back.
fn dirty() -> (World, Policy) {
    let mut cfg = config(vec![full(1000)]);
    cfg.policy = Policy { clean_low_percent: 0, clean_high_percent: 0, ..cfg.policy };
    let policy = cfg.policy;
    let mut w = World::new(cfg);
    w.attach(0, 1, &[16]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    w.fill(0, 0, 8, 1);
    (w, policy)
}

/// Return an event that changes only the policy.
fn change(policy: Policy) -> Event<'static> {
    Event::Reconfigure { policy, host_bytes_max: 1 << 30, nvme_bytes_max: 0 }
}

#[test]
fn new_watermarks_hold_at_once() {
    let (mut w, policy) = dirty();
    assert!(w.host.is_empty(), "nothing is cleaned below the old watermark");
    let policy = Policy { clean_low_percent: 100, clean_high_percent: 100, ..policy };
    w.event(change(policy)).unwrap();
    assert!(w.host.len() >= 7, "{} of 7 sealed pages are cleaned", w.host.len());
}

#[test]
fn a_new_deadline_is_for_the_requests_that_follow() {
    let (mut w, policy) = dirty();
    w.eager = false;
    w.event(change(Policy { request_timeout_us: 50, ..policy })).unwrap();
    w.ok(0, Request::SeqCreate { seq: 1 });
    let reserve = w.ask(0, Request::Reserve { seq: 1, count: 12 });
    assert_eq!(w.answer(0, reserve), None, "the stores that make room have not ended");
    w.pass(50);
    assert_eq!(w.answer(0, reserve).unwrap().status, Status::TimedOut);
}

#[test]
fn a_policy_that_contradicts_itself_changes_nothing() {
    let (mut w, policy) = dirty();
    let wrong = [
        Policy { clean_low_percent: 51, clean_high_percent: 50, ..policy },
        Policy { clean_high_percent: 101, ..policy },
        Policy { host_low_percent: 96, ..policy },
        Policy { host_clean_low_percent: 21, ..policy },
        Policy { nvme_low_percent: 96, ..policy },
        Policy { scan_frames: 0, ..policy },
        Policy { host_scan_frames: 0, ..policy },
    ];
    for policy in wrong {
        assert!(matches!(w.event(change(policy)), Err(Error::Config { .. })), "{policy:?}");
        assert!(w.host.is_empty());
    }
}

#[test]
fn a_lower_bound_sheds_what_nobody_needs() {
    let (mut w, policy) = dirty();
    w.ok(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &[1, 2, 3], level: Level::Published });
    w.ok(0, Request::Park { seq: 0, due_us: 0 });
    w.ok(0, Request::SeqDrop { seq: 0 });
    let found = |w: &mut World, seq| {
        w.ok(0, Request::SeqCreate { seq });
        let attached = w.ok(0, Request::AttachPrefix { seq, hashes: &[1, 2, 3], asked: Some(0) }).value;
        w.ok(0, Request::SeqDrop { seq });
        attached
    };
    assert_eq!(found(&mut w, 1), 3, "cached");
    w.event(Event::Reconfigure { policy, host_bytes_max: 2048, nvme_bytes_max: 0 }).unwrap();
    assert!(found(&mut w, 2) < 3, "what exceeds the new bound has gone");
}

#[test]
fn a_higher_bound_makes_room_for_what_was_refused() {
    let mut cfg = config(vec![full(1000)]);
    cfg.limits.host_bytes_max = 4096;
    let policy = cfg.policy;
    let mut w = World::new(cfg);
    w.node.slab_frames = 4;
    w.attach(0, 1, &[16]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    let reserve = Request::Reserve { seq: 0, count: 40 };
    assert_ne!(w.call(0, reserve).status, Status::Ok, "16 frames and 4 do not hold 40 pages");
    w.event(Event::Reconfigure { policy, host_bytes_max: 1 << 20, nvme_bytes_max: 0 }).unwrap();
    w.ok(0, Request::SeqDrop { seq: 0 });
    w.ok(0, Request::SeqCreate { seq: 0 });
    w.fill(0, 0, 40, 1);
}

//! Guarantees when tiers are short, or become short during a call.

use kvtide_fake::*;
use kvtide_tiering::ActionBuf;
use kvtide_tiering::api::*;

fn hashes(n: u128) -> Vec<u128> {
    (1..=n).map(|i| i << 64 | 7).collect()
}

#[test]
fn a_prefix_that_is_shortened_keeps_its_snapshot() {
    let state = Plane { page_bytes: 300, kind: PlaneKind::State };
    let mut w = World::new(config(vec![full(1000), state]));
    // Host holds one page that two sessions share, so one of three blocks would fit.
    w.node.frames = vec![1, 8];
    w.node.slab_frames = 1;
    w.attach(0, 1, &[32, 32]);
    w.attach(1, 1, &[32, 32]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    w.fill(0, 0, 3, 2);
    let h = hashes(3);
    w.ok(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &h, level: Level::Published });
    w.ok(1, Request::SeqCreate { seq: 0 });
    // The snapshots of the first two blocks are gone: only all three blocks together can be continued.
    assert_eq!(w.call(1, Request::AttachPrefix { seq: 0, hashes: &h, asked: Some(0) }).status, Status::NoSpace);
    assert_eq!(w.core.seq_tokens(1, 0), Some(0));
}

#[test]
fn a_prefix_that_waits_is_no_longer_than_its_blocks() {
    let mut w = World::new(config(vec![full(1000), full(300)]));
    w.attach(0, 1, &[32, 32]);
    w.attach(1, 1, &[32, 32]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    w.fill(0, 0, 3, 2);
    w.ok(1, Request::SeqCreate { seq: 0 });
    let h = hashes(3);
    // From here on the test answers in place of the node.
    let mut buf = ActionBuf::new(64, 1024);
    let publish = Request::Publish { seq: 0, first: 0, parent: 0, hashes: &h, level: Level::Published };
    for (session, tag, request) in
        [(0, 900, publish), (1, 901, Request::AttachPrefix { seq: 0, hashes: &h, asked: Some(0) })]
    {
        let event = Event::Request { session, channel: 0, tag, timeout_us: 0, request };
        w.core.handle(w.now, event, &mut buf).unwrap();
    }
    for event in [Event::SlabGranted { class: 0, slab: 0, frames: 2 }, Event::SlabRefused { class: 0 }] {
        w.core.handle(w.now, event, &mut buf).unwrap();
        w.core.check().unwrap();
    }
    assert_eq!(w.core.seq_tokens(1, 0), Some(8), "two blocks, which wait for the other class");
    w.core.handle(w.now, Event::SlabGranted { class: 1, slab: 1, frames: 8 }, &mut buf).unwrap();
    let attached = buf.actions().iter().find_map(|action| match action {
        Action::Complete { session: 1, tag: 901, status, value, .. } => Some((*status, *value)),
        _ => None,
    });
    assert_eq!(attached, Some((Status::Ok, 2)));
}

#[test]
fn nobody_waits_for_the_pages_of_a_step_that_is_over() {
    let mut w = World::new(config(vec![full(1000), full(1000)]));
    w.attach(0, 2, &[12]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    let pages = w.fill(0, 0, 12, 2);
    assert_eq!(w.read(0, pages[0].0, 0), None, "the first block has left tier 0");
    w.eager = false;
    w.ok(0, Request::Step { lane: 0, step: 1, seqs: &[0] });
    w.ok(0, Request::Step { lane: 1, step: 1, seqs: &[] });
    let fault = |lane| Request::Fault { lane, use_pos: 2, seq: 0, index: 0, plane: 0, whole: false };
    let (over, open) = (w.ask(0, fault(0)), w.ask(0, fault(1)));
    w.ok(0, Request::StepEnd { lane: 0, step: 1 });
    assert_eq!(w.answer(0, over).map(|done| done.status), Some(Status::NotFound));
    assert_eq!(w.answer(0, open), None, "another lane's");
    w.eager = true;
    w.settle();
    assert_eq!(w.answer(0, open).map(|done| done.status), Some(Status::Ok));
}

/// Execute jobs until none is left, but refuse to evict pages.
fn run_refusing_evicts(w: &mut World) {
    while let Some((id, job)) = w.agents.get_mut(&0).unwrap().jobs.pop_front() {
        let status = match job {
            Job::Evict { .. } => Status::Busy,
            _ => {
                w.carry_out(0, job);
                Status::Ok
            }
        };
        w.end_job(0, id, status);
        w.settle();
    }
}

#[test]
fn pages_that_the_engine_pins_take_no_job_slots() {
    let state = Plane { page_bytes: 300, kind: PlaneKind::State };
    let mut cfg = config(vec![full(1000), state]);
    cfg.limits.jobs_max = 4;
    let mut w = World::new(cfg);
    w.attach(0, 1, &[32, 32]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    w.eager = false;
    let mut blocks = Vec::new();
    for i in 1..=10 {
        let tag = w.ask(0, Request::Reserve { seq: 0, count: 1 });
        run_refusing_evicts(&mut w);
        let done = w.answer(0, tag).expect("a block needs no frame that is pinned");
        blocks.push(done.list[0]);
        w.ok(0, Request::Commit { seq: 0, tokens: 4 * i });
        run_refusing_evicts(&mut w);
    }
    assert!(blocks.iter().all(|&block| w.read(0, block, 1).is_some()), "all pinned");
    // The evictions are requested again after a delay, not at once.
    let at = w.core.next_deadline().unwrap();
    assert!(at > w.now);
    w.eager = true;
    w.now = at;
    w.event(Event::Tick).unwrap();
    let left: Vec<_> = blocks.iter().filter(|&&block| w.read(0, block, 1).is_some()).collect();
    assert_eq!(left, [&blocks[9]], "only the newest snapshot is needed");
}

//! Each request of the address space, against an agent that checks every job.

use kvtide_fake::*;
use kvtide_tiering::api::*;

fn world(tier0: u32) -> World {
    let mut w = World::new(config(vec![full(1000), full(1000)]));
    w.attach(0, 2, &[tier0]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    w
}

/// Read a page; fault if it is not resident.
fn read(w: &mut World, seq: SeqId, index: u32, block: BlockId, plane: u16) -> u64 {
    if w.read(0, block, plane).is_none() {
        w.ok(0, Request::Fault { lane: 0, use_pos: 0, seq, index, plane, whole: false });
    }
    w.read(0, block, plane).unwrap()
}

fn check_pages(w: &mut World, seq: SeqId, pages: &[(BlockId, Vec<u64>)]) {
    for (index, (block, contents)) in pages.iter().enumerate() {
        for (plane, &content) in contents.iter().enumerate() {
            assert_eq!(read(w, seq, index as u32, *block, plane as u16), content, "block {index} plane {plane}");
        }
    }
}

#[test]
fn fork_shares_what_is_sealed_and_copies_the_tail() {
    let mut w = world(32);
    let pages = w.fill(0, 0, 3, 2);
    let tail = w.ok(0, Request::Reserve { seq: 0, count: 2 }).list[0];
    let wrote: Vec<_> = (0..2).map(|p| w.write(0, tail, p)).collect();
    w.ok(0, Request::Commit { seq: 0, tokens: 14 });
    let fork = w.ok(0, Request::Fork { parent: 0, child: 1 });
    assert_eq!((fork.value, fork.list.len()), (3, 1), "three shared, the tail copied, the empty block not");
    let copy = fork.list[0];
    for plane in 0..2 {
        assert_eq!(w.read(0, copy, plane), Some(wrote[usize::from(plane)]));
    }
    assert_eq!(w.core.seq_tokens(0, 1), Some(14));
    // The parent does not see later writes of the child.
    w.write(0, copy, 0);
    assert_eq!(w.read(0, tail, 0), Some(wrote[0]));
    w.ok(0, Request::SeqDrop { seq: 0 });
    check_pages(&mut w, 1, &pages);
    w.ok(0, Request::SeqDrop { seq: 1 });
    assert_eq!(w.agents[&0].table.iter().count(), 0);
    assert_eq!(w.core.occupancy().blocks, 0);
}

#[test]
fn fork_of_a_fork_of_a_beam() {
    let mut w = world(32);
    let pages = w.fill(0, 0, 2, 2);
    for child in 1..8 {
        assert_eq!(w.ok(0, Request::Fork { parent: child - 1, child }).value, 2);
    }
    for child in 0..7 {
        w.ok(0, Request::SeqDrop { seq: child });
    }
    check_pages(&mut w, 7, &pages);
    assert_eq!(w.call(0, Request::Fork { parent: 7, child: 7 }).status, Status::State);
    assert_eq!(w.call(0, Request::Fork { parent: 1, child: 2 }).status, Status::NotFound);
    assert_eq!(w.call(0, Request::Fork { parent: 7, child: 99 }).status, Status::Range);
}

#[test]
fn truncate_rolls_back_and_copies_on_write() {
    let mut w = world(64);
    let pages = w.fill(0, 0, 4, 2);
    w.ok(0, Request::Fork { parent: 0, child: 1 });
    // At a block boundary: no copy.
    let cut = w.ok(0, Request::Truncate { seq: 1, tokens: 12 });
    assert_eq!((cut.value, cut.list.len()), (3, 0));
    // Inside a sealed block: a writable copy; the parent keeps its own block.
    let cut = w.ok(0, Request::Truncate { seq: 1, tokens: 10 });
    assert_eq!((cut.value, cut.list.len()), (3, 1));
    let copy = cut.list[0];
    assert_ne!(copy, pages[2].0);
    assert_eq!(w.read(0, copy, 1), Some(pages[2].1[1]));
    w.write(0, copy, 1);
    w.ok(0, Request::Commit { seq: 1, tokens: 12 });
    check_pages(&mut w, 0, &pages);
    assert_eq!(w.call(0, Request::Truncate { seq: 1, tokens: 13 }).status, Status::Range);
    assert_eq!(w.call(0, Request::Truncate { seq: 1, tokens: u64::MAX }).status, Status::Range);
    assert_eq!(w.ok(0, Request::Truncate { seq: 1, tokens: 0 }).value, 0);
    check_pages(&mut w, 0, &pages);
}

#[test]
fn truncate_copies_a_block_that_is_only_in_host() {
    let mut w = world(12);
    let pages = w.fill(0, 0, 12, 2);
    assert_eq!(w.read(0, pages[0].0, 0), None, "the first block has left tier 0");
    let copy = w.ok(0, Request::Truncate { seq: 0, tokens: 2 }).list[0];
    assert_eq!(w.read(0, copy, 0), Some(pages[0].1[0]));
    assert_eq!(w.core.occupancy().blocks, 1);
}

fn hashes(n: u128) -> Vec<u128> {
    (1..=n).map(|i| i << 64 | 7).collect()
}

#[test]
fn published_blocks_are_attached_and_outlive_their_sequence() {
    let mut w = world(16);
    let pages = w.fill(0, 0, 6, 2);
    let h = hashes(6);
    let p = w.call(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &h[..4], level: Level::Stored });
    assert_eq!((p.status, p.value), (Status::NotAdmitted, Level::Published as u64), "there is no NVMe tier");
    w.ok(0, Request::Publish { seq: 0, first: 4, parent: h[3], hashes: &h[4..], level: Level::Published });
    w.ok(0, Request::SeqDrop { seq: 0 });
    w.ok(0, Request::SeqCreate { seq: 5 });
    let mut asked = h.clone();
    asked[5] = 99;
    let attached = w.ok(0, Request::AttachPrefix { seq: 5, hashes: &asked, asked: Some(0) });
    assert_eq!(attached.value, 5, "the longest prefix");
    assert_eq!(attached.list, pages[..5].iter().map(|p| p.0).collect::<Vec<_>>());
    check_pages(&mut w, 5, &pages[..5]);
    // A further request continues where the first one ended.
    assert_eq!(w.ok(0, Request::AttachPrefix { seq: 5, hashes: &h[5..], asked: Some(0) }).value, 1);
    check_pages(&mut w, 5, &pages);
    // A chain that does not begin at the root is not found.
    w.ok(0, Request::SeqCreate { seq: 6 });
    assert_eq!(w.ok(0, Request::AttachPrefix { seq: 6, hashes: &h[1..], asked: Some(0) }).value, 0);
}

#[test]
fn publish_refuses_nonsense() {
    let mut w = world(32);
    w.fill(0, 0, 3, 2);
    w.ok(0, Request::Reserve { seq: 0, count: 1 });
    let h = hashes(4);
    let mut publish = |first, parent, hashes: &[u128]| {
        w.call(0, Request::Publish { seq: 0, first, parent, hashes, level: Level::Published }).status
    };
    assert_eq!(publish(0, 0, &h), Status::State, "the last block is not sealed");
    assert_eq!(publish(3, h[2], &h), Status::Range);
    assert_eq!(publish(u32::MAX, 0, &h), Status::Range);
    assert_eq!(publish(1, 0, &h[1..2]), Status::Invalid, "no parent");
    assert_eq!(publish(1, h[0], &h[1..2]), Status::NotAdmitted, "the parent is not cached");
    assert_eq!(publish(0, 0, &[0]), Status::Invalid);
    assert_eq!(publish(0, 0, &h[..2]), Status::Ok);
    assert_eq!(publish(0, 0, &h[..2]), Status::Ok, "again is the same");
    assert_eq!(publish(0, 0, &[5, 6]), Status::State, "a block has one content");
}

#[test]
fn equal_blocks_are_published_once() {
    let mut w = world(64);
    let first = w.fill(0, 0, 2, 2);
    w.ok(0, Request::SeqCreate { seq: 1 });
    w.fill(0, 1, 2, 2);
    let h = hashes(2);
    for seq in 0..2 {
        w.ok(0, Request::Publish { seq, first: 0, parent: 0, hashes: &h, level: Level::Published });
    }
    w.ok(0, Request::SeqCreate { seq: 2 });
    assert_eq!(w.ok(0, Request::AttachPrefix { seq: 2, hashes: &h, asked: Some(0) }).list, [first[0].0, first[1].0]);
    assert_eq!(w.core.occupancy().published, 2);
}

#[test]
fn park_and_resume_take_the_tail_along() {
    let mut w = world(32);
    let pages = w.fill(0, 0, 3, 2);
    let tail = w.ok(0, Request::Reserve { seq: 0, count: 1 }).list[0];
    let wrote: Vec<_> = (0..2).map(|p| w.write(0, tail, p)).collect();
    w.ok(0, Request::Commit { seq: 0, tokens: 13 });
    w.ok(0, Request::Park { seq: 0, due_us: 0 });
    assert_eq!(w.read(0, tail, 0), None);
    for refused in [
        Request::Commit { seq: 0, tokens: 14 },
        Request::Reserve { seq: 0, count: 1 },
        Request::Fork { parent: 0, child: 3 },
        Request::Truncate { seq: 0, tokens: 1 },
    ] {
        assert_eq!(w.call(0, refused).status, Status::State, "{refused:?}");
    }
    w.ok(0, Request::Resume { seq: 0 });
    assert_eq!(w.read(0, tail, 1), Some(wrote[1]));
    assert_eq!(w.call(0, Request::Resume { seq: 0 }).status, Status::State);
    // The tail's host copy is gone: later writes survive the next park.
    let newer = w.write(0, tail, 1);
    w.ok(0, Request::Park { seq: 0, due_us: 0 });
    w.ok(0, Request::Resume { seq: 0 });
    assert_eq!((w.read(0, tail, 0), w.read(0, tail, 1)), (Some(wrote[0]), Some(newer)));
    check_pages(&mut w, 0, &pages);
}

#[test]
fn a_parked_sequence_comes_back_when_due() {
    let mut w = world(8);
    let pages = w.fill(0, 0, 2, 2);
    w.ok(0, Request::Park { seq: 0, due_us: 1_000_000 });
    w.ok(0, Request::SeqCreate { seq: 1 });
    w.fill(0, 1, 6, 2);
    assert_eq!(w.read(0, pages[0].0, 0), None, "others needed the room");
    w.ok(0, Request::SeqDrop { seq: 1 });
    while let Some(at) = w.core.next_deadline().filter(|&at| at < 1_000_000) {
        w.now = at;
        w.event(Event::Tick).unwrap();
    }
    assert_eq!(w.read(0, pages[0].0, 0), Some(pages[0].1[0]));
    assert!(w.core.counters().host_to_tier0.pages[kvtide_tiering::Reason::Scheduled as usize] > 0);
}

#[test]
fn acquired_pages_stay() {
    let mut w = world(16);
    let pages = w.fill(0, 0, 10, 2);
    assert_eq!(w.read(0, pages[0].0, 0), None);
    let pin = Request::Acquire { seq: 0, plane: 0, planes: 2, first: 0, count: 2 };
    w.ok(0, pin);
    w.ok(0, Request::SeqCreate { seq: 1 });
    w.fill(0, 1, 12, 2);
    for page in &pages[..2] {
        assert_eq!(w.read(0, page.0, 1), Some(page.1[1]), "pinned");
    }
    let tags = [
        (Request::Acquire { seq: 0, plane: 0, planes: 2, first: 0, count: 9 }, Status::TooBig),
        (Request::Acquire { seq: 0, plane: 1, planes: 2, first: 0, count: 1 }, Status::Range),
        (Request::Acquire { seq: 0, plane: 0, planes: 0, first: 0, count: 1 }, Status::Invalid),
        (Request::Acquire { seq: 0, plane: 0, planes: 1, first: u32::MAX, count: u32::MAX }, Status::Range),
        (Request::Acquire { seq: 9, plane: 0, planes: 1, first: 0, count: 1 }, Status::NotFound),
        (Request::Acquire { seq: 0, plane: 0, planes: 2, first: 4, count: 5 }, Status::NoSpace),
        (Request::Truncate { seq: 0, tokens: 1 }, Status::Busy),
        (Request::Park { seq: 0, due_us: 0 }, Status::Busy),
        (Request::Release { seq: 0, plane: 0, planes: 1, first: 0, count: 2 }, Status::State),
        (Request::Release { seq: 0, plane: 0, planes: 2, first: 0, count: 2 }, Status::Ok),
        (Request::Release { seq: 0, plane: 0, planes: 2, first: 0, count: 2 }, Status::State),
    ];
    for (request, status) in tags {
        assert_eq!(w.call(0, request).status, status, "{request:?}");
    }
    w.ok(0, pin);
    w.ok(0, Request::SeqDrop { seq: 0 });
}

#[test]
fn advice_moves_pages_when_that_harms_nobody() {
    let mut w = world(16);
    let pages = w.fill(0, 0, 10, 2);
    w.ok(0, Request::SeqCreate { seq: 1 });
    let others = w.fill(0, 1, 2, 2);
    assert_eq!(w.read(0, pages[0].0, 0), None);
    let advise = |first, count, advice| Request::Advise { seq: 0, first, count, advice };
    w.ok(0, advise(8, 2, Advice::DontNeed));
    w.ok(0, advise(0, 1, Advice::WillNeed));
    for a in [Advice::Sequential, Advice::Priority(200), Advice::Cold] {
        w.ok(0, advise(0, 10, a));
    }
    assert_eq!(w.call(0, advise(9, 2, Advice::Cold)).status, Status::Range);
    assert_eq!(w.call(0, advise(u32::MAX, u32::MAX, Advice::WillNeed)).status, Status::Range);
    check_pages(&mut w, 1, &others);
    check_pages(&mut w, 0, &pages);
}

#[test]
fn declared_pages_are_where_they_were() {
    let mut w = world(16);
    let declare = |index, tokens, frames: &'static [u32]| Request::Declare { seq: 0, index, tokens, frames };
    let first = w.ok(0, declare(0, 9, &[3, 4])).list[0];
    let agent = w.agents.get_mut(&0).unwrap();
    (0..2).for_each(|plane| _ = agent.table.show(first, plane, 3 + u32::from(plane)));
    agent.frames.extend([(3, 71), (4, 72)]);
    for (request, status) in [
        (declare(0, 9, &[5, 6]), Status::State),
        (declare(1, 9, &[5]), Status::Invalid),
        (declare(1, 9, &[5, 5]), Status::Invalid),
        (declare(1, 9, &[5, 16]), Status::Range),
        (declare(1, 9, &[3, 5]), Status::Busy),
    ] {
        assert_eq!(w.call(0, request).status, status, "{request:?}");
    }
    let second = w.ok(0, declare(1, 9, &[5, NONE])).list[0];
    w.agents.get_mut(&0).unwrap().table.show(second, 0, 5);
    assert_eq!(
        w.call(0, Request::Fault { lane: 0, use_pos: 0, seq: 0, index: 1, plane: 1, whole: false }).status,
        Status::Lost
    );
    assert_eq!(w.core.seq_tokens(0, 0), Some(8));
    // Another sequence that declares the same block shares it.
    w.ok(0, Request::SeqCreate { seq: 1 });
    assert_eq!(w.ok(0, Request::Declare { seq: 1, index: 0, tokens: 4, frames: &[3, 4] }).list, [first]);
    w.ok(0, Request::SeqDrop { seq: 0 });
    assert_eq!(w.read(0, first, 0), Some(71));
    w.ok(0, Request::SeqDrop { seq: 1 });
    assert_eq!(w.core.occupancy().blocks, 0);
}

#[test]
fn commits_go_forward_and_within_the_reserved_blocks() {
    let mut w = world(32);
    assert_eq!(w.ok(0, Request::Reserve { seq: 0, count: 1 }).list.len(), 1);
    assert_eq!(w.call(0, Request::Reserve { seq: u32::MAX, count: 1 }).status, Status::NotFound);
    w.ok(0, Request::Commit { seq: 0, tokens: 4 });
    assert_eq!(w.call(0, Request::Commit { seq: 0, tokens: 5 }).status, Status::State);
    assert_eq!(w.call(0, Request::Commit { seq: 0, tokens: 3 }).status, Status::State);
}

#[test]
fn reserve_knows_what_fits() {
    let mut w = World::new(config(vec![full(1000), full(1000)]));
    w.node.frames = vec![10];
    w.attach(0, 1, &[16]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    assert_eq!(
        w.call(0, Request::Reserve { seq: 0, count: 7 }).status,
        Status::TooBig,
        "12 frames may be held for long"
    );
    assert_eq!(w.call(0, Request::Reserve { seq: 0, count: 600 }).status, Status::Limit);
    // 12 frames here and 10 in host: 11 blocks of 2 planes.
    let pages = w.fill(0, 0, 11, 2);
    assert_eq!(w.call(0, Request::Reserve { seq: 0, count: 1 }).status, Status::NoSpace);
    for step in 1..5 {
        w.step(0, 0, step, 0, &pages, 2);
    }
    w.ok(0, Request::Truncate { seq: 0, tokens: 40 });
    w.ok(0, Request::Reserve { seq: 0, count: 1 });
}

#[test]
fn a_reserve_waits_for_blocks_that_are_on_their_way_out() {
    let mut cfg = config(vec![full(1000)]);
    cfg.limits.blocks_max = 8;
    let mut w = World::new(cfg);
    w.attach(0, 1, &[32]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    w.fill(0, 0, 8, 1);
    w.eager = false;
    w.ok(0, Request::SeqDrop { seq: 0 });
    w.ok(0, Request::SeqCreate { seq: 1 });
    let tag = w.ask(0, Request::Reserve { seq: 1, count: 2 });
    assert_eq!(w.answer(0, tag), None, "ids are free only when their pages are invalidated");
    w.eager = true;
    w.settle();
    assert_eq!(w.answer(0, tag).unwrap().status, Status::Ok);
    // Deadline and cancellation of a waiting request.
    w.ok(0, Request::Reserve { seq: 1, count: 6 });
    assert_eq!(w.call(0, Request::Reserve { seq: 1, count: 1 }).status, Status::NoSpace);
}

#[test]
fn pages_out_of_window_are_discarded_and_bound_what_is_kept() {
    let window = Plane { page_bytes: 1000, kind: PlaneKind::Window { tokens: 6 } };
    let state = Plane { page_bytes: 300, kind: PlaneKind::State };
    let mut w = World::new(config(vec![full(1000), window, state]));
    w.attach(0, 1, &[32, 16]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    let pages = w.fill(0, 0, 10, 3);
    // 40 tokens: the window reads tokens 34.. (block 8 on), the state plane block 9.
    for (index, (block, contents)) in pages.iter().enumerate() {
        assert_eq!(w.read(0, *block, 1).is_some(), index >= 8, "block {index}");
        assert_eq!(w.read(0, *block, 2).is_some(), index >= 9, "block {index}");
        assert!(w.read(0, *block, 0).is_none_or(|c| c == contents[0]));
    }
    assert_eq!(w.core.counters().pages_discarded, 8 + 9);
    assert_eq!(
        w.call(0, Request::Fault { lane: 0, use_pos: 0, seq: 0, index: 2, plane: 1, whole: false }).status,
        Status::Lost
    );
    assert_eq!(w.call(0, Request::Truncate { seq: 0, tokens: 36 }).status, Status::Lost, "its window is gone");
    w.ok(0, Request::SeqDrop { seq: 0 });
    assert_eq!(w.core.occupancy().blocks, 0);
}

#[test]
fn windows_of_shared_and_published_blocks_stay() {
    let window = Plane { page_bytes: 1000, kind: PlaneKind::Window { tokens: 4 } };
    let mut w = World::new(config(vec![full(1000), window]));
    w.attach(0, 1, &[64]);
    w.ok(0, Request::SeqCreate { seq: 0 });
    let pages = w.fill(0, 0, 1, 2);
    w.ok(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &[77], level: Level::Published });
    let mut more = w.fill(0, 0, 1, 2);
    w.ok(0, Request::Fork { parent: 0, child: 1 });
    w.fill(0, 0, 4, 2);
    assert_eq!(w.read(0, pages[0].0, 1), Some(pages[0].1[1]), "published");
    assert_eq!(w.read(0, more[0].0, 1), Some(more[0].1[1]), "the child reads it");
    w.ok(0, Request::SeqDrop { seq: 1 });
    w.fill(0, 0, 1, 2);
    assert_eq!(w.read(0, more.remove(0).0, 1), None, "no other reference exists now");
    w.ok(0, Request::SeqCreate { seq: 2 });
    assert_eq!(w.ok(0, Request::AttachPrefix { seq: 2, hashes: &[77], asked: Some(0) }).value, 1);
}

#[test]
fn shards_are_found_together() {
    let mut cfg = config(vec![full(1000)]);
    cfg.shards = 2;
    let mut w = World::new(cfg);
    for (s, shard) in [(0, 0), (1, 1), (2, 0)] {
        w.attach_shard(s, shard, 1, &[16]).unwrap();
        w.ok(s, Request::SeqCreate { seq: 0 });
    }
    assert!(w.attach_shard(3, 2, 1, &[16]).is_err());
    let h = hashes(2);
    let mine: Vec<_> = (0..2).map(|s| w.fill(s, 0, 2, 1)).collect();
    w.ok(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &h, level: Level::Published });
    assert_eq!(w.ok(2, Request::AttachPrefix { seq: 0, hashes: &h, asked: Some(0) }).value, 0, "one shard is missing");
    w.ok(1, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &h, level: Level::Published });
    let attached = w.ok(2, Request::AttachPrefix { seq: 0, hashes: &h, asked: Some(0) });
    assert_eq!(attached.list, [mine[0][0].0, mine[0][1].0], "its own shard's copy");
    // The other replica reads the pages of the first one from host.
    for (i, page) in mine[0].iter().enumerate() {
        w.ok(2, Request::Fault { lane: 0, use_pos: 0, seq: 0, index: i as u32, plane: 0, whole: false });
        assert_eq!(w.read(2, page.0, 0), Some(page.1[0]));
    }
}

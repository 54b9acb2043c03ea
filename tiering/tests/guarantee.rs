//! Guarantees: a session can have a number of blocks, whatever others hold.

use kvtide_fake::*;
use kvtide_tiering::api::*;

const PLANES: u16 = 2;
/// Frames of each session's tier 0, of which it streams through 4.
const TIER0: u32 = 12;
/// Blocks that fit into it.
const ROOM: u32 = 4;

fn hashes(n: u128) -> Vec<u128> {
    (1..=n).map(|i| i << 64 | 9).collect()
}

/// Return a space with two sessions, and `host` blocks of host memory and `slots` blocks of NVMe for them.
fn world(host: u32, slots: u32) -> World {
    let mut cfg = config(vec![full(4096); PLANES.into()]);
    cfg.limits.host_bytes_max = u64::from(host * u32::from(PLANES)) * 4096;
    cfg.limits.nvme_bytes_max = u64::from(slots) * u64::from(PLANES) * 4096;
    let mut w = World::sized(cfg, (host * u32::from(PLANES), 2), (slots, 2));
    w.attach(0, 1, &[TIER0]);
    w.attach(1, 1, &[TIER0]);
    w
}

fn guarantee(w: &mut World, s: SessionId, blocks: u32) -> (Status, u64) {
    let done = w.call(s, Request::Guarantee { blocks });
    (done.status, done.value)
}

/// Write blocks into the sequence, one at a time, until a reserve fails; return their number.
fn fill_up(w: &mut World, s: SessionId, most: u32) -> u32 {
    for count in 0..most {
        let before = w.core.seq_tokens(s, 0).unwrap();
        let done = w.call(s, Request::Reserve { seq: 0, count: 1 });
        if done.status != Status::Ok {
            assert_eq!(done.status, Status::NoSpace);
            return count;
        }
        for plane in 0..PLANES {
            w.write(s, done.list[0], plane);
        }
        w.ok(s, Request::Commit { seq: 0, tokens: before + 4 });
    }
    most
}

fn two_engines(host: u32, slots: u32, guaranteed: u32) -> (u32, u32) {
    let mut w = world(host, slots);
    assert_eq!(guarantee(&mut w, 0, guaranteed), (Status::Ok, guaranteed.into()));
    for s in 0..2 {
        w.ok(s, Request::SeqCreate { seq: 0 });
    }
    let greedy = fill_up(&mut w, 1, 200);
    (fill_up(&mut w, 0, guaranteed.max(ROOM)), greedy)
}

#[test]
fn what_is_guaranteed_is_there_after_others_have_taken_all_they_can() {
    // Without a guarantee the second engine takes all host memory, and the first has its tier 0.
    assert_eq!(two_engines(12, 0, 0), (ROOM, 12 + ROOM));
    assert_eq!(two_engines(12, 0, 10), (10, 12 - (10 - ROOM) + ROOM));
    // The same with a disk below. What streams through host memory is not for whole blocks.
    let ((none, all), (some, rest)) = (two_engines(4, 12, 0), two_engines(4, 12, 10));
    assert_eq!((some, none + all), (10, some + rest), "{none} {all} {some} {rest}");
}

#[test]
fn cached_blocks_use_the_memory_of_a_guarantee_and_give_way() {
    let mut w = world(12, 0);
    assert_eq!(guarantee(&mut w, 0, 16).0, Status::Ok);
    w.ok(1, Request::SeqCreate { seq: 0 });
    assert_eq!(fill_up(&mut w, 1, 200), ROOM, "nothing is left but its tier 0");
    let h = hashes(ROOM.into());
    w.ok(1, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &h, level: Level::Published });
    w.ok(1, Request::SeqDrop { seq: 0 });
    assert_eq!(
        w.ok(1, Request::Lookup { hashes: &h, asked: 0, range: 0 }).value & 0xffff,
        ROOM.into(),
        "cached blocks are in host memory"
    );
    w.ok(0, Request::SeqCreate { seq: 0 });
    assert_eq!(fill_up(&mut w, 0, 16), 16);
}

#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    let mut w = world(12, 0);
    w.ok(1, Request::SeqCreate { seq: 0 });
    assert_eq!(fill_up(&mut w, 1, ROOM + 3), ROOM + 3);
    assert_eq!(guarantee(&mut w, 0, 200), (Status::NoSpace, u64::from(9 + ROOM)));
    assert_eq!(guarantee(&mut w, 0, 10 + ROOM), (Status::NoSpace, u64::from(9 + ROOM)));
    assert_eq!(guarantee(&mut w, 0, 9 + ROOM), (Status::Ok, u64::from(9 + ROOM)));
    assert_eq!(fill_up(&mut w, 1, 1), 0, "the other engine gets no more");
    assert_eq!(guarantee(&mut w, 0, 8 + ROOM).0, Status::Ok, "a smaller one replaces it");
    assert_eq!(fill_up(&mut w, 1, 2), 1);
    // The block ids of the space count as well.
    let mut w = world(300, 0);
    assert_eq!(guarantee(&mut w, 0, 250).0, Status::Ok);
    assert_eq!(guarantee(&mut w, 1, 7), (Status::NoSpace, 6));
    let mut bare = World::new(config(vec![full(4096)]));
    bare.attach(0, 1, &[0]);
    assert_eq!(guarantee(&mut bare, 0, 1).0, Status::Invalid, "its blocks have no home");
}

#[test]
fn a_prefix_that_others_attach_does_not_take_a_guarantee_away() {
    let mut w = world(12, 0);
    assert_eq!(guarantee(&mut w, 0, 12 + ROOM).0, Status::Ok);
    w.ok(0, Request::SeqCreate { seq: 0 });
    assert_eq!(fill_up(&mut w, 0, 8), 8);
    let h = hashes(8);
    w.ok(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &h, level: Level::Published });
    // Shared blocks need host memory beside the guarantee, and none is left.
    w.ok(1, Request::SeqCreate { seq: 0 });
    assert_eq!(w.call(1, Request::AttachPrefix { seq: 0, hashes: &h, asked: Some(0) }).status, Status::NoSpace);
    assert_eq!(fill_up(&mut w, 0, 4 + ROOM), 4 + ROOM);
}

#[test]
fn a_guarantee_ends_with_its_session() {
    let mut w = world(12, 0);
    assert_eq!(guarantee(&mut w, 0, 12 + ROOM).0, Status::Ok);
    assert_eq!(guarantee(&mut w, 1, ROOM + 1), (Status::NoSpace, ROOM.into()));
    w.event(Event::SessionLost { session: 0 }).unwrap();
    assert_eq!(guarantee(&mut w, 1, 12 + ROOM).0, Status::Ok);
}

/// Memory that the node has yet to grant is waited for.
#[test]
fn a_guarantee_grows_the_space() {
    let mut w = world(12, 6);
    let before = w.core.occupancy().host_frames;
    assert_eq!(guarantee(&mut w, 0, 16).0, Status::Ok);
    assert!(w.core.occupancy().host_frames > before);
    assert_eq!(guarantee(&mut w, 1, 16).0, Status::NoSpace);
}

//! Tier 0 shrinks and grows while a client runs steps.

use crate::clients::{attach, read, write};
use crate::{BOUND, daemon};
use kvtide_client::{Channel, Client, Lane, PageRange, Pass, SeqId, StepSeq};
use kvtide_wire::status::Status;

/// The byte that fills uncommitted pages.
const DRAFT: u8 = 0xd7;

/// Create a sequence with one block that is written but not committed.
fn draft(channel: &mut Channel, lane: &mut Lane) -> SeqId {
    let seq = channel.create_seq().unwrap();
    channel.reserve(seq, 1, BOUND).unwrap();
    lane.begin(&[StepSeq { seq, tokens: 1 }]).unwrap();
    for plane in 0..3 {
        lane.boundary(plane).unwrap();
        lane.page_mut(seq, 0, plane).unwrap().fill(DRAFT);
    }
    lane.end().unwrap();
    seq
}

/// Return the frames of that block's pages, and verify their bytes.
fn places(client: &Client, lane: &mut Lane, seq: SeqId) -> [u32; 3] {
    let layout = client.layout();
    lane.begin(&[StepSeq { seq, tokens: 1 }]).unwrap();
    let frames = [0, 1, 2].map(|plane| {
        assert_eq!(lane.boundary(plane).unwrap(), Pass::All, "uncommitted pages are never evicted");
        let page = lane.page_mut(seq, 0, plane).unwrap();
        assert!(page.iter().all(|byte| *byte == DRAFT), "plane {plane}");
        let of = layout.planes[usize::from(plane)];
        ((page.as_ptr() as usize - layout.tier0 as usize - of.offset as usize) / of.stride as usize) as u32
    });
    lane.end().unwrap();
    frames
}

#[test]
fn tier_0_shrinks_under_its_engine_and_grows_again() {
    let daemon = daemon("");
    let (client, mut channel, mut lane) = attach(daemon.socket(), 16);
    let sealed = write(&mut channel, &mut lane, 20);
    let seq = draft(&mut channel, &mut lane);
    let before = places(&client, &mut lane, seq);
    assert!(before[0] >= 24 && before[1] >= 12, "the frames are outside of the smaller tier 0: {before:?}");
    assert_eq!(channel.resize_tier0(0, 24, BOUND).unwrap(), 24);
    assert_eq!(channel.resize_tier0(1, 12, BOUND).unwrap(), 12);
    assert_eq!([0, 1, 2].map(|class| channel.tier0_frames(class)), [24, 12, 0]);
    let after = places(&client, &mut lane, seq);
    assert!(after[0] < 24 && after[2] < 24 && after[1] < 12, "the pages were moved into the smaller tier 0: {after:?}");
    read(&mut lane, sealed, 20);
    assert_eq!(channel.resize_tier0(0, 64, BOUND).unwrap(), 64);
    assert_eq!(channel.resize_tier0(1, 32, BOUND).unwrap(), 32);
    read(&mut lane, sealed, 20);
    places(&client, &mut lane, seq);
}

#[test]
fn a_shrink_that_cannot_be_changes_nothing_and_says_why() {
    let daemon = daemon("");
    let (_client, mut channel, mut lane) = attach(daemon.socket(), 16);
    let sealed = write(&mut channel, &mut lane, 20);
    let refused = |channel: &mut Channel, class, frames| {
        let error = channel.resize_tier0(class, frames, std::time::Duration::from_millis(50)).unwrap_err();
        assert_eq!((channel.tier0_frames(0), channel.tier0_frames(1)), (64, 32), "{error}");
        error.status()
    };
    assert_eq!(refused(&mut channel, 2, 8), Status::Range, "the class does not exist");
    assert_eq!(refused(&mut channel, 0, 65), Status::Range, "more frames than at attach");
    assert_eq!(refused(&mut channel, 0, 1), Status::Range, "fewer frames than a block needs");
    let range = PageRange { seq: sealed, first: 0, count: 20, plane: 0, planes: 3 };
    let pin = channel.acquire(range, BOUND).unwrap();
    assert!(matches!(refused(&mut channel, 0, 8), Status::Busy | Status::TimedOut), "all pages are pinned");
    channel.release(pin).unwrap();
    // A resize that timed out was canceled; its completion arrives before that of this request.
    channel.nop(BOUND).unwrap();
    assert_eq!(channel.resize_tier0(0, 16, BOUND).unwrap(), 16);
    read(&mut lane, sealed, 20);
}

#[test]
fn a_new_daemon_hears_how_large_tier_0_is() {
    let first = daemon("");
    let (client, mut channel, mut lane) = attach(first.socket(), 16);
    let sealed = write(&mut channel, &mut lane, 4);
    assert_eq!(channel.resize_tier0(0, 20, BOUND).unwrap(), 20);
    let socket = first.socket().to_owned();
    drop(first);
    assert_eq!(channel.nop(BOUND).unwrap_err().status(), Status::Daemon);
    drop((channel, lane));
    let second = daemon(&format!("[daemon]\nsocket = \"{}\"\n", socket.display()));
    let client = client.reattach(&socket).unwrap();
    let (mut channel, mut lane) = (client.channel(0).unwrap(), client.lane(0).unwrap());
    read(&mut lane, sealed, 4);
    assert_eq!(channel.tier0_frames(0), 20);
    // More than the smaller tier 0 holds: with the old size, the new daemon would use frames without memory.
    let more = write(&mut channel, &mut lane, 5);
    channel.park(sealed, std::time::Duration::ZERO).unwrap();
    let larger = write(&mut channel, &mut lane, 3);
    read(&mut lane, more, 5);
    read(&mut lane, larger, 3);
    drop(second);
}

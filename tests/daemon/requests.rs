//! Invalid requests of an engine: each returns its own error, and the session continues.

use crate::daemon;
use crate::raw::{FRAMES, Raw, sub};
use kvtide_wire::entry::{Op, Submission};
use kvtide_wire::status::Status;

#[test]
fn mistakes_are_answered_and_cost_nothing() {
    let daemon = daemon("");
    let mut raw = Raw::attach(daemon.socket());
    // Codes of deleted requests, and one that no request has had.
    for op in [4, 26, 1000] {
        assert_eq!(raw.status(Submission { op, ..sub(Op::Nop) }), Status::Invalid);
    }
    assert_eq!(raw.status(Submission { seq: 3, ..sub(Op::SeqDrop) }), Status::NotFound);
    assert_eq!(raw.status(Submission { seq: 9999, ..sub(Op::SeqCreate) }), Status::Range);
    assert_eq!(raw.status(sub(Op::SeqCreate)), Status::Ok);
    assert_eq!(raw.status(sub(Op::SeqCreate)), Status::State);
    let blocks = raw.call(Submission { count: 4, ..sub(Op::Reserve) });
    assert_eq!((blocks.status, blocks.value, raw.answer(&blocks).len()), (0, 4, 4));
    // A page out of range, a plane out of range.
    assert_eq!(raw.status(Submission { first: 4, count: 1, flags: 1, ..sub(Op::Acquire) }), Status::Range);
    assert_eq!(raw.status(Submission { count: 1, lane: 1, flags: 1, ..sub(Op::Acquire) }), Status::Range);
    // A double release.
    let range = Submission { first: 1, count: 2, flags: 1, ..sub(Op::Acquire) };
    assert_eq!(raw.status(range), Status::Ok);
    assert_eq!(raw.status(Submission { op: Op::Release as u16, ..range }), Status::Ok);
    assert_eq!(raw.status(Submission { op: Op::Release as u16, ..range }), Status::State);
    // Beyond the reservation.
    assert_eq!(raw.status(Submission { value: 65, ..sub(Op::Commit) }), Status::State);
    assert_eq!(raw.status(Submission { value: 64, ..sub(Op::Commit) }), Status::Ok);
    assert_eq!(raw.status(sub(Op::SeqDrop)), Status::Ok);
    assert_eq!(raw.status(sub(Op::Nop)), Status::Ok);
}

#[test]
fn more_than_tier_0_is_too_big_at_once() {
    let daemon = daemon("");
    let mut raw = Raw::attach(daemon.socket());
    assert_eq!(raw.status(sub(Op::SeqCreate)), Status::Ok);
    let tokens = u64::from(FRAMES + 8) * 16;
    for first in (0..FRAMES + 8).step_by(8) {
        assert_eq!(raw.status(Submission { count: 8, ..sub(Op::Reserve) }), Status::Ok);
        assert_eq!(raw.status(Submission { value: u64::from(first + 8) * 16, ..sub(Op::Commit) }), Status::Ok);
    }
    assert_eq!(tokens, u64::from(FRAMES + 8) * 16);
    assert_eq!(raw.status(Submission { count: FRAMES + 8, flags: 1, ..sub(Op::Acquire) }), Status::TooBig);
    assert_eq!(raw.status(Submission { count: 4, flags: 1, ..sub(Op::Acquire) }), Status::Ok);
}

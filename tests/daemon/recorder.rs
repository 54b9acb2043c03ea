//! Flight recorder: a replay of a running daemon's recording gives the same actions.

use crate::daemon;
use crate::raw::{Raw, sub};
use crate::roles::park_four_blocks;
use kvtide_tiering::recorder::Recording;
use kvtide_wire::entry::Op;
use kvtide_wire::status::Status;

#[test]
fn a_recording_replays_to_the_same_actions() {
    let mut daemon = daemon("[daemon]\nrecorder = \"64KiB\"\n[limits]\nblocks_max = 1024\nseq_blocks_max = 1024\n");
    let mut raw = Raw::attach(daemon.socket());
    // Enough to fill the recorder's segments: the recording then begins with a copy of the core instead of the start.
    for _ in 0..400 {
        park_four_blocks(&mut raw, 0);
        assert_eq!(raw.status(sub(Op::Resume)), Status::Ok);
        assert_eq!(raw.status(sub(Op::SeqDrop)), Status::Ok);
    }
    daemon.record().unwrap();
    let bytes = std::fs::read(daemon.dir().join("space-1.kvtrec")).unwrap();
    let recording = Recording::load(&bytes).unwrap();
    let (mut inputs, mut actions) = (0, 0);
    let core = recording
        .replay(|_, _, buf| {
            inputs += 1;
            actions += buf.actions().len();
        })
        .unwrap();
    assert_eq!(core.trace(), recording.end());
    assert!(inputs > 100 && actions > 100, "{inputs} inputs, {actions} actions");
    assert!(inputs < 400 * 10, "the recorder is bounded: {inputs} inputs");
}

#[test]
fn without_a_recorder_nothing_is_written() {
    let mut daemon = daemon("");
    assert_eq!(Raw::attach(daemon.socket()).status(sub(Op::Nop)), Status::Ok);
    daemon.record().unwrap();
    assert!(!daemon.dir().join("space-1.kvtrec").exists());
}

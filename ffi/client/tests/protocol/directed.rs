//! Directed tests of the single rules.

use super::model::{BLOCKS, FRAMES, PLANES, geometry, with_frames};
use kvtide_client::agent::protocol::{Copied, CopyOp, Geometry, LaneView, Mover, Shared, Tracks, geometry::Bounds};
use kvtide_wire::{
    entry::{Job, JobDone, JobKind, NONE_U16, NONE_U32, SAMPLED},
    geometry::Plane,
    status::Status,
};
use std::sync::{Arc, Mutex};

struct Bench {
    shared: Arc<Shared>,
    mover: Mover,
    lane: LaneView,
    other: LaneView,
}

fn bench() -> Bench {
    bench_of(geometry(16))
}

fn bench_of(geometry: Geometry) -> Bench {
    let shared = Arc::new(Shared::new(geometry).expect("tables"));
    let lane = |index| LaneView::new(Arc::clone(&shared), index).expect("lane");
    let (lane, other) = (lane(0), lane(1));
    Bench { mover: Mover::new(Arc::clone(&shared)).expect("mover"), lane, other, shared }
}

fn job(kind: JobKind, id: u32, page: (u32, u16), frame: u32) -> Job {
    let (block, plane) = page;
    Job { kind: kind as u16, id, block, plane, frame, victim_block: NONE_U32, use_lane: NONE_U16, ..Job::default() }
}

fn instead_of(job: Job, victim: (u32, u16)) -> Job {
    Job { victim_block: victim.0, victim_plane: victim.1, ..job }
}

impl Bench {
    fn send(&mut self, job: Job) {
        self.mover.accept(&job, 0).expect("room");
        self.mover.poll();
    }

    fn ended(&mut self) -> Option<JobDone> {
        self.mover.poll();
        self.mover.next_ended(0).map(|ended| ended.done)
    }

    fn status(&mut self, id: u32) -> Option<Status> {
        let done = self.ended()?;
        assert_eq!(done.id, id);
        Status::from_code(done.status)
    }

    fn map(&mut self, id: u32, page: (u32, u16), frame: u32) {
        self.send(job(JobKind::Install, id, page, frame));
        assert_eq!(self.status(id), Some(Status::Ok));
    }

    fn finish(&mut self, op: &CopyOp) {
        self.finish_with(op, 0);
    }

    fn finish_with(&mut self, op: &CopyOp, digest: u32) {
        self.mover.copied(op, Ok(Copied { bytes: op.bytes.into(), digest }));
    }
}

#[test]
fn a_frame_waits_for_every_active_lane_and_for_no_quiescent_one() {
    let mut b = bench();
    b.map(1, (0, 0), 0);
    b.lane.begin(1);
    b.other.begin(1);
    b.send(instead_of(job(JobKind::CopyIn, 2, (1, 0), 0), (0, 0)));
    assert!(b.mover.next_copy().is_none(), "two lanes may still read the frame");
    b.lane.boundary(0);
    assert!(b.lane.frame(0, 0).is_none() && b.other.frame(0, 0) == Some(0));
    b.mover.poll();
    assert!(b.mover.next_copy().is_none(), "one lane may still read the frame");
    b.other.end();
    b.mover.poll();
    let op = b.mover.next_copy().expect("no lane reads the frame");
    b.lane.boundary(0);
    assert!(b.lane.frame(1, 0).is_none(), "not before its bytes have arrived");
    b.finish(&op);
    assert!(b.lane.frame(1, 0).is_none(), "not before a boundary");
    b.lane.boundary(0);
    assert_eq!(b.lane.frame(1, 0), Some(0));
}

#[test]
fn a_lane_keeps_a_page_until_its_use_is_over() {
    let mut b = bench();
    b.map(1, (0, 1), FRAMES[0]);
    b.lane.begin(7);
    let use_pos = 7 * u64::from(PLANES) + 1;
    let load = instead_of(job(JobKind::CopyIn, 2, (1, 1), FRAMES[0]), (0, 1));
    b.send(Job { use_lane: 0, use_pos, ..load });
    b.lane.boundary(0);
    assert_eq!(b.lane.frame(0, 1), Some(FRAMES[0]), "kept before its plane");
    b.lane.boundary(1);
    assert_eq!(b.lane.frame(0, 1), Some(FRAMES[0]), "kept at the first boundary of its plane: it is read now");
    b.mover.poll();
    assert!(b.mover.next_copy().is_none());
    b.lane.boundary(1);
    assert!(b.lane.frame(0, 1).is_none(), "released after it was read");
    b.mover.poll();
    let op = b.mover.next_copy().expect("the lane has released the frame");
    b.finish(&op);
    // The next page of a scan arrives in the same frame while its plane is open: kept for one boundary, then released.
    let load = instead_of(job(JobKind::CopyIn, 3, (2, 1), FRAMES[0]), (1, 1));
    b.send(Job { use_lane: 0, use_pos, ..load });
    b.lane.boundary(1);
    assert_eq!(b.lane.frame(1, 1), Some(FRAMES[0]), "it has just arrived and is read now");
    b.lane.boundary(1);
    assert!(b.lane.frame(1, 1).is_none());
    b.mover.poll();
    assert!(b.mover.next_copy().is_some());
}

/// An invalidation that names no lane, of a page that the device may read until the end.
#[test]
fn a_gated_step_keeps_the_pages_of_complete_planes() {
    let mut b = bench();
    b.map(1, (0, 1), FRAMES[0]);
    b.map(2, (1, 1), FRAMES[0] + 1);
    b.lane.begin(7);
    b.lane.boundary(0);
    b.send(instead_of(job(JobKind::CopyIn, 3, (2, 1), FRAMES[0]), (0, 1)));
    b.send(instead_of(job(JobKind::CopyIn, 4, (3, 1), FRAMES[0] + 1), (1, 1)));
    b.lane.refresh_keeping(|block, plane| (block, plane) == (0, 1));
    assert_eq!((b.lane.frame(0, 1), b.lane.frame(1, 1)), (Some(FRAMES[0]), None), "only the named page is kept");
    b.mover.poll();
    let op = b.mover.next_copy().expect("the frame of the other page is free");
    b.finish(&op);
    b.lane.refresh_keeping(|_, _| false);
    b.mover.poll();
    assert!(b.mover.next_copy().is_none(), "kept until the end");
    b.lane.end();
    b.mover.poll();
    assert!(b.mover.next_copy().is_some());
}

#[test]
fn a_block_that_a_gated_step_may_read_is_dropped_at_its_end() {
    let mut b = bench();
    b.map(1, (0, 0), 0);
    b.map(2, (0, 1), FRAMES[0]);
    b.lane.begin(7);
    b.lane.boundary(0);
    b.send(job(JobKind::Drop, 3, (0, 0), 0));
    // The page that is kept is not the last one that the job gives up.
    b.lane.refresh_keeping(|_, plane| plane == 0);
    assert_eq!(b.ended(), None, "kept until the end");
    b.lane.end();
    assert_eq!(b.status(3), Some(Status::Ok));
}

#[test]
fn the_end_of_a_step_gives_everything_up() {
    let mut b = bench();
    b.map(1, (0, 0), 0);
    b.lane.begin(1);
    let load = instead_of(job(JobKind::CopyIn, 2, (1, 0), 0), (0, 0));
    b.send(Job { use_lane: 0, use_pos: 1 << 40, ..load });
    b.lane.boundary(2);
    assert_eq!(b.lane.frame(0, 0), Some(0), "kept for a use far ahead");
    b.lane.end();
    b.lane.begin(2);
    b.mover.poll();
    assert!(b.lane.frame(0, 0).is_none() && b.mover.next_copy().is_some());
}

#[test]
fn moves_that_wait_for_the_end_of_a_step_keep_no_job_from_it() {
    const LOG: u32 = 16;
    let bounds = Bounds {
        page_tokens: 4,
        blocks_max: 2 * LOG,
        seqs_max: 2,
        seq_blocks_max: LOG,
        lanes: 1,
        jobs_max: 2 * LOG,
        log_entries: LOG,
        pins_max: 1,
    };
    let plane = Plane::full(100);
    let shared =
        Arc::new(Shared::new(Geometry::new(&[plane], &[2 * LOG + 1], bounds).expect("geometry")).expect("tables"));
    let lane = || LaneView::new(Arc::clone(&shared), 0).expect("lane");
    let (lane, other) = (lane(), lane());
    let mut b = Bench { mover: Mover::new(Arc::clone(&shared)).expect("mover"), lane, other, shared };
    (0..LOG).for_each(|at| b.map(at, (at, 0), at));
    b.lane.begin(1);
    for at in 0..LOG {
        b.send(Job { src_frame: at, ..job(JobKind::Move, LOG + at, (at, 0), LOG + at) });
    }
    // There are more moves than log entries. The page that the step waits for must still arrive.
    b.send(job(JobKind::CopyIn, 99, (LOG, 0), 2 * LOG));
    let op = b.mover.next_copy().expect("the load waits for no lane");
    b.finish(&op);
    assert_eq!(b.status(99), Some(Status::Ok));
    b.lane.boundary(0);
    assert_eq!(b.lane.frame(LOG, 0), Some(2 * LOG));
    b.lane.end();
    let mut moved = 0;
    while moved < LOG {
        b.mover.poll();
        while let Some(op) = b.mover.next_copy() {
            b.finish(&op);
        }
        while let Some(done) = b.ended() {
            assert_eq!(done.status, Status::Ok.code());
            moved += 1;
        }
    }
    assert!(b.lane.begin(2), "the gate is open again");
    assert!((0..LOG).all(|at| b.lane.frame(at, 0) == Some(LOG + at)));
}

#[test]
fn an_invalidation_leaves_a_page_that_moved_meanwhile() {
    let mut b = bench();
    b.map(1, (0, 0), 0);
    b.lane.begin(1);
    let load = instead_of(job(JobKind::CopyIn, 2, (1, 0), 0), (0, 0));
    b.send(Job { use_lane: 0, use_pos: 1 << 40, ..load });
    b.lane.boundary(0);
    b.send(job(JobKind::CopyIn, 3, (0, 0), 1));
    let op = b.mover.next_copy().expect("a free frame");
    b.finish(&op);
    assert_eq!(b.status(3), Some(Status::Ok));
    b.lane.boundary(0);
    assert_eq!(b.lane.frame(0, 0), Some(1), "the page shows its new frame");
    b.other.begin(1);
    assert_eq!(b.other.frame(0, 0), Some(1));
    b.lane.end();
    b.lane.begin(2);
    assert_eq!(b.lane.frame(0, 0), Some(1), "the hold on the old frame clears nothing");
}

#[test]
fn a_cancelled_job_puts_its_victim_back_and_a_begun_copy_is_waited_for() {
    let mut b = bench();
    b.map(1, (0, 0), 0);
    b.lane.begin(1);
    b.send(instead_of(job(JobKind::CopyIn, 2, (1, 0), 0), (0, 0)));
    b.lane.boundary(0);
    assert!(b.lane.frame(0, 0).is_none());
    let cancel = |id, target| Job { src_block: target, ..job(JobKind::Cancel, id, (0, 0), 0) };
    b.send(cancel(3, 2));
    assert_eq!(b.status(2), Some(Status::Canceled));
    assert_eq!(b.status(3), Some(Status::Ok));
    b.lane.boundary(0);
    assert_eq!(b.lane.frame(0, 0), Some(0), "the victim is back");
    b.send(instead_of(job(JobKind::CopyIn, 4, (1, 0), 0), (0, 0)));
    b.lane.boundary(0);
    b.mover.poll();
    let op = b.mover.next_copy().expect("the lane has released the frame");
    b.send(cancel(5, 4));
    assert_eq!(b.status(5), Some(Status::Busy), "too late");
    b.send(cancel(6, 77));
    assert_eq!(b.status(6), Some(Status::Busy), "no such job");
    assert_eq!(b.ended(), None);
    b.finish(&op);
    assert_eq!(b.status(4), Some(Status::Ok));
}

#[test]
fn bytes_that_are_not_those_that_were_stored_show_nothing() {
    let in_sample = |job: Job, digest| Job { flags: SAMPLED, digest, ..job };
    let mut b = bench();
    b.map(1, (0, 0), 0);
    b.send(in_sample(job(JobKind::CopyOut, 2, (0, 0), 0), 0));
    let op = b.mover.next_copy().expect("a store waits for no lane");
    assert!(op.sampled);
    b.finish_with(&op, 77);
    let done = b.ended().expect("stored");
    assert_eq!((done.status, done.flags, done.digest), (Status::Ok.code(), SAMPLED, 77));
    b.send(job(JobKind::Evict, 3, (0, 0), 0));
    assert_eq!(b.status(3), Some(Status::Ok));
    for kind in [JobKind::CopyIn, JobKind::CopyInAs] {
        b.map(4, (1, 0), 0);
        b.send(in_sample(instead_of(job(kind, 5, (0, 0), 0), (1, 0)), 77));
        let op = b.mover.next_copy().expect("no lane is active");
        b.finish_with(&op, 78);
        let done = b.ended().expect("loaded");
        assert_eq!((done.status, done.flags, done.digest), (Status::Corrupt.code(), SAMPLED, 78));
        b.lane.begin(1);
        assert!(b.lane.frame(0, 0).is_none() && b.lane.frame(1, 0).is_none());
        b.lane.end();
        assert_eq!((b.shared.resident(0, 0), b.shared.resident(1, 0)), (None, None));
    }
    b.send(in_sample(job(JobKind::CopyIn, 6, (0, 0), 0), 77));
    let op = b.mover.next_copy().expect("no lane is active");
    b.finish_with(&op, 77);
    let done = b.ended().expect("loaded");
    assert_eq!((done.status, done.flags, done.digest), (Status::Ok.code(), SAMPLED, 77));
    assert_eq!(b.shared.resident(0, 0), Some(0));
    b.send(job(JobKind::CopyOut, 7, (0, 0), 0));
    let op = b.mover.next_copy().expect("a store waits for no lane");
    assert!(!op.sampled, "not in the sample");
    b.finish_with(&op, 77);
    let done = b.ended().expect("stored");
    assert_eq!((done.flags, done.digest), (0, 0));
}

#[test]
fn an_engine_without_tier_0_has_no_page_tables_and_copies_its_own_blocks() {
    let mut b = bench_of(with_frames(&[0; FRAMES.len()], 16));
    assert_eq!((b.shared.geometry().pages(), b.shared.geometry().table_blocks()), (0, 0));
    assert!(b.shared.resident(0, 0).is_none() && b.lane.frame(0, 0).is_none());
    let own = |id, block| Job { frame: NONE_U32, src_frame: 7, ..job(JobKind::Gather, id, (block, 1), 0) };
    b.send(own(1, BLOCKS - 1));
    let op = b.mover.next_copy().expect("a copy to do");
    b.finish(&op);
    assert_eq!(b.status(1), Some(Status::Ok));
    b.send(own(2, BLOCKS));
    assert_eq!(b.status(2), Some(Status::Invalid), "the space has no such block");
    b.send(job(JobKind::Install, 3, (0, 0), 0));
    assert_eq!(b.status(3), Some(Status::Invalid), "there is no frame");
    b.send(job(JobKind::Drop, 4, (0, 0), 0));
    assert_eq!(b.status(4), Some(Status::Ok), "no page is resident, so nothing to do");
    b.send(job(JobKind::Drop, 5, (BLOCKS, 0), 0));
    assert_eq!(b.status(5), Some(Status::Invalid));
}

#[test]
fn flags_that_mean_nothing_are_refused() {
    let mut b = bench();
    b.map(1, (0, 0), 0);
    b.send(Job { flags: SAMPLED << 1, ..job(JobKind::CopyOut, 2, (0, 0), 0) });
    assert_eq!(b.status(2), Some(Status::Invalid));
    b.send(Job { flags: SAMPLED, ..job(JobKind::Install, 3, (1, 0), 1) });
    assert_eq!(b.status(3), Some(Status::Invalid));
}

#[test]
fn a_copy_that_fails_or_falls_short_shows_nothing() {
    for result in [Err(Status::Io), Ok(0), Ok(99)] {
        let mut b = bench();
        b.map(1, (0, 0), 0);
        b.send(instead_of(job(JobKind::CopyIn, 2, (1, 0), 0), (0, 0)));
        let op = b.mover.next_copy().expect("no lane is active");
        b.mover.copied(&op, result.map(|bytes| Copied { bytes, digest: 0 }));
        assert_eq!(b.status(2), Some(Status::Io));
        let again = instead_of(job(JobKind::CopyIn, 3, (1, 0), 0), (0, 0));
        b.send(Job { kind: JobKind::Install as u16, block: 2, ..again });
        assert_eq!(b.status(3), Some(Status::Ok), "a job is valid even if its victim is already gone");
        b.send(job(JobKind::Evict, 4, (2, 0), 0));
        assert_eq!(b.status(4), Some(Status::Ok));
        b.finish(&op);
        assert_eq!(b.ended(), None, "a copy ends once");
        b.lane.begin(1);
        assert!(b.lane.frame(0, 0).is_none() && b.lane.frame(1, 0).is_none());
        assert_eq!(b.shared.resident(1, 0), None);
        b.map(3, (1, 0), 0);
    }
}

#[test]
fn a_block_is_dropped_whole() {
    let mut b = bench();
    b.map(1, (3, 0), 0);
    b.map(2, (3, 1), FRAMES[0]);
    b.map(3, (3, 2), 1);
    b.map(4, (4, 0), 2);
    assert_eq!(b.shared.resident_pages(3), 3);
    b.lane.begin(1);
    b.send(job(JobKind::Drop, 5, (3, 0), 0));
    assert_eq!(b.ended(), None, "a lane may still read the block");
    b.lane.boundary(0);
    assert_eq!(b.status(5), Some(Status::Ok));
    assert!((0..PLANES).all(|plane| b.lane.frame(3, plane).is_none()));
    assert_eq!(b.lane.frame(4, 0), Some(2));
    assert_eq!(b.shared.resident_pages(3), 0);
    b.send(job(JobKind::Drop, 6, (3, 0), 0));
    assert_eq!(b.status(6), Some(Status::Ok), "no page is resident, so nothing to do");
}

#[test]
fn jobs_that_contradict_what_frames_show_are_refused() {
    let mut b = bench();
    b.map(1, (0, 0), 0);
    let load = job(JobKind::CopyIn, 2, (1, 0), 0);
    let wrong = [
        load,                                                             // the frame shows a page
        instead_of(load, (2, 0)),                                         // the frame shows another page
        instead_of(job(JobKind::CopyIn, 2, (0, 0), 1), (0, 0)),           // the page is resident in another frame
        job(JobKind::CopyIn, 2, (0, 0), 1),                               // already resident
        job(JobKind::CopyIn, 2, (1, 1), 1),                               // another class
        job(JobKind::CopyOut, 2, (1, 0), 0),                              // the frame shows another page
        job(JobKind::Evict, 2, (1, 0), 0),                                // likewise
        Job { src_frame: 2, ..job(JobKind::Copy, 2, (1, 0), 1) },         // the source shows nothing
        Job { src_frame: FRAMES[0], ..job(JobKind::Copy, 2, (1, 0), 1) }, // the source is of another class
    ];
    for job in wrong {
        b.send(job);
        assert_eq!(b.status(2), Some(Status::Invalid), "{job:?}");
    }
    b.send(job(JobKind::CopyOut, 2, (0, 0), 0));
    b.send(job(JobKind::Evict, 3, (0, 0), 0));
    assert_eq!(b.status(3), Some(Status::Invalid), "a frame that is being read");
    b.send(job(JobKind::Drop, 4, (0, 0), 0));
    assert_eq!(b.status(4), Some(Status::Invalid), "a block with a frame that is being read");
    b.send(job(JobKind::Install, 2, (5, 0), 5));
    assert_eq!(b.status(2), Some(Status::Invalid), "the job id is in flight");
}

/// Call that a lane made to its `Tracks`. A mark records whether the mover saw all lanes as quiescent.
#[derive(Debug, PartialEq)]
enum Told {
    Entry(u32, u32),
    Mark { quiescent: bool },
    Follow,
}

struct Recorder(Arc<Shared>, Arc<Mutex<Vec<Told>>>);

impl Tracks for Recorder {
    fn entry(&mut self, page: u32, entry: u32) {
        self.1.lock().expect("lock").push(Told::Entry(page, entry));
    }

    fn mark(&mut self) {
        self.1.lock().expect("lock").push(Told::Mark { quiescent: self.0.quiescent() });
    }

    fn follow(&mut self) {
        self.1.lock().expect("lock").push(Told::Follow);
    }
}

#[test]
fn a_lane_marks_what_it_enqueued_before_the_mover_may_go_on() {
    let mut b = bench();
    b.map(1, (0, 0), 0);
    b.lane.begin(1);
    b.lane.end();
    let told = Arc::new(Mutex::new(Vec::new()));
    let take = || std::mem::take(&mut *told.lock().expect("lock"));
    let mark = |quiescent| Told::Mark { quiescent };
    b.lane.track(Box::new(Recorder(Arc::clone(&b.shared), Arc::clone(&told))));
    assert_eq!(take(), [Told::Entry(0, 1)], "the current entries are reported");

    b.lane.begin(2);
    b.lane.boundary(0);
    assert_eq!(take(), [], "nothing has changed");
    b.map(2, (1, 0), 1);
    b.lane.boundary(0);
    let planes = u32::from(PLANES);
    assert_eq!(
        take(),
        [Told::Entry(planes, 2), Told::Follow, mark(false)],
        "a page without copied bytes: other lanes may still read its frame"
    );

    // A victim that this lane keeps until its use is over: the mark comes before the hold is released.
    b.lane.boundary(1);
    let position = b.lane.position();
    let load = instead_of(job(JobKind::CopyIn, 3, (2, 0), 0), (0, 0));
    b.send(Job { use_lane: 0, use_pos: position, ..load });
    b.lane.refresh();
    assert_eq!(take(), [mark(false)], "applied, but held");
    b.mover.poll();
    assert!(b.mover.next_copy().is_none() && b.lane.frame(0, 0) == Some(0), "a refresh gives up no page");
    b.lane.boundary(1);
    assert_eq!(take(), [mark(false), Told::Entry(0, 0)]);
    b.mover.poll();
    let op = b.mover.next_copy().expect("no lane reads the frame");
    b.finish(&op);
    b.lane.boundary(1);
    assert_eq!(
        take(),
        [Told::Entry(2 * planes, 1), mark(false)],
        "a page that was copied: its copy ran after every mark"
    );
    b.lane.end();
    assert_eq!(take(), [mark(false)], "the mark comes before the lane is quiescent");
    assert!(b.shared.quiescent());
}

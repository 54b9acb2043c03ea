//! The page-table protocol under every order of memory accesses that loom explores. No lane reads a frame that is being
//! overwritten, whether the lane is active, quiescent, beginning, holding a page or lapped by the log. A pin that saw its page
//! resident keeps it.
#![cfg(loom)]

use kvtide_client::agent::protocol::{Copied, Geometry, LaneView, Mover, PageRange, Shared, geometry::Bounds};
use kvtide_wire::{
    entry::{Job, JobKind, NONE_U16, NONE_U32},
    geometry::Plane,
    status::Status,
};
use loom::{cell::UnsafeCell, thread};
use std::sync::Arc;

/// Content of a frame: the number of the block stored in it.
struct Frame(UnsafeCell<u32>);

// SAFETY: loom checks every access to the cell; these models prove that no access runs concurrently with a write.
unsafe impl Sync for Frame {}
// SAFETY: as above.
unsafe impl Send for Frame {}

impl Frame {
    fn read(&self) -> u32 {
        // SAFETY: loom fails the model if this read is not ordered with every write.
        self.0.with(|at| unsafe { *at })
    }

    fn write(&self, block: u32) {
        // SAFETY: as above, for this write and every other access.
        self.0.with_mut(|at| unsafe { *at = block });
    }
}

struct World {
    mover: Mover,
    lane: LaneView,
    frame: Arc<Frame>,
    next: u32,
}

/// Create tables for one lane and one sequence, with blocks and frames of one plane.
fn shared(blocks: u32, frames: u32) -> Arc<Shared> {
    let bounds = Bounds {
        page_tokens: 1,
        blocks_max: blocks,
        seqs_max: 1,
        seq_blocks_max: blocks,
        lanes: 1,
        jobs_max: 2,
        log_entries: 8,
        pins_max: 1,
    };
    let geometry = Geometry::new(&[Plane::full(64)], &[frames], bounds).expect("geometry");
    Arc::new(Shared::new(geometry).expect("tables"))
}

impl World {
    /// Create a world with one frame, which shows block 0.
    fn new() -> World {
        let shared = shared(3, 1);
        assert!(shared.seqs().create(0) && shared.seqs().push(0, 0));
        let lane = LaneView::new(Arc::clone(&shared), 0).expect("lane");
        let mover = Mover::new(shared).expect("mover");
        let mut world = World { mover, lane, frame: Arc::new(Frame(UnsafeCell::new(0))), next: 1 };
        let map = world.job(JobKind::Install, 0, NONE_U32);
        assert_eq!(carry(&mut world.mover, &world.frame, &map), Status::Ok);
        world
    }

    /// Create a world, and a job that loads block 1 in place of block 0.
    fn loading() -> (World, Job) {
        let mut world = World::new();
        let load = world.job(JobKind::CopyIn, 1, 0);
        (world, load)
    }

    fn job(&mut self, kind: JobKind, block: u32, victim_block: u32) -> Job {
        self.next += 1;
        Job { kind: kind as u16, id: self.next, block, victim_block, use_lane: NONE_U16, ..Job::default() }
    }
}

/// Run a job to its end; the copy writes the frame.
fn carry(mover: &mut Mover, frame: &Frame, job: &Job) -> Status {
    while mover.accept(job, 0).is_err() {
        thread::yield_now();
    }
    loop {
        mover.poll();
        if let Some(op) = mover.next_copy() {
            frame.write(job.block);
            mover.copied(&op, Ok(Copied { bytes: op.bytes.into(), digest: 0 }));
        }
        match mover.next_ended(0) {
            Some(ended) => return Status::from_code(ended.done.status).expect("a status"),
            None => thread::yield_now(),
        }
    }
}

/// Check that the frame holds the block that the table shows.
fn look(lane: &LaneView, frame: &Frame) {
    for block in 0..3 {
        if lane.frame(block, 0).is_some() {
            assert_eq!(frame.read(), block, "the table shows block {block}");
        }
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn an_active_lane_never_reads_a_frame_that_is_being_overwritten() {
    check(3, || {
        let (World { mut mover, mut lane, frame, .. }, load) = World::loading();
        let bytes = Arc::clone(&frame);
        let reader = thread::spawn(move || {
            lane.begin(1);
            look(&lane, &bytes);
            lane.boundary(0);
            look(&lane, &bytes);
            lane.end();
        });
        assert_eq!(carry(&mut mover, &frame, &load), Status::Ok, "the load replaces block 0");
        reader.join().expect("the lane ends");
    });
}

#[test]
fn a_lane_that_begins_sees_the_invalidation_or_is_seen() {
    check(3, || {
        let (World { mut mover, mut lane, frame, .. }, load) = World::loading();
        lane.begin(1);
        lane.end();
        let bytes = Arc::clone(&frame);
        let reader = thread::spawn(move || {
            for step in 2..4 {
                lane.begin(step);
                look(&lane, &bytes);
                lane.end();
            }
        });
        assert_eq!(carry(&mut mover, &frame, &load), Status::Ok);
        reader.join().expect("the lane ends");
    });
}

#[test]
fn a_lane_that_holds_a_page_reads_it_until_its_use_is_over() {
    check(3, || {
        let (World { mut mover, mut lane, frame, .. }, load) = World::loading();
        let bytes = Arc::clone(&frame);
        lane.begin(1);
        let reader = thread::spawn(move || {
            lane.boundary(0);
            look(&lane, &bytes);
            lane.boundary(0);
            look(&lane, &bytes);
            lane.end();
            lane.begin(2);
            look(&lane, &bytes);
            lane.end();
        });
        let load = Job { use_lane: 0, use_pos: 1, ..load };
        assert_eq!(carry(&mut mover, &frame, &load), Status::Ok);
        reader.join().expect("the lane ends");
    });
}

#[test]
fn a_frame_that_a_gated_step_may_read_stays_until_its_end() {
    check(3, || {
        let (World { mut mover, mut lane, frame, .. }, load) = World::loading();
        let bytes = Arc::clone(&frame);
        let reader = thread::spawn(move || {
            lane.begin(1);
            lane.boundary(0);
            // From its gate on the device may read this page, whatever the lane's table contains later.
            let shown = (0..3).find(|block| lane.frame(*block, 0).is_some());
            for _ in 0..2 {
                lane.refresh_keeping(|_, plane| plane == 0);
                shown.inspect(|block| assert_eq!(bytes.read(), *block, "the page that the table showed"));
            }
            lane.end();
        });
        assert_eq!(carry(&mut mover, &frame, &load), Status::Ok, "the load replaces block 0");
        reader.join().expect("the lane ends");
    });
}

#[test]
fn a_lane_that_was_lapped_by_the_log_rebuilds_while_it_is_written() {
    check(2, || {
        let mut world = World::new();
        world.lane.begin(1);
        world.lane.end();
        // The lane has applied 1 update; the log holds 8. The loads write six more, and the next job claims two: together more
        // than one lap.
        for block in [1, 2, 0] {
            let victim = (block + 2) % 3;
            let load = world.job(JobKind::CopyIn, block, victim);
            assert_eq!(carry(&mut world.mover, &world.frame, &load), Status::Ok);
        }
        let next = world.job(JobKind::CopyIn, 1, 0);
        let World { mut mover, mut lane, frame, .. } = world;
        let bytes = Arc::clone(&frame);
        let reader = thread::spawn(move || {
            lane.begin(2);
            look(&lane, &bytes);
            lane.end();
        });
        assert_eq!(carry(&mut mover, &frame, &next), Status::Ok);
        reader.join().expect("the lane ends");
    });
}

/// Create two frames. The first shows block 0, which the lane writes in its steps.
fn two_frames() -> (Mover, LaneView, [Arc<Frame>; 2]) {
    let shared = shared(1, 2);
    let lane = LaneView::new(Arc::clone(&shared), 0).expect("lane");
    let mut mover = Mover::new(shared).expect("mover");
    let frames = [0, 0].map(|bytes| Arc::new(Frame(UnsafeCell::new(bytes))));
    let map =
        Job { kind: JobKind::Install as u16, id: 1, victim_block: NONE_U32, use_lane: NONE_U16, ..Job::default() };
    assert_eq!(carry(&mut mover, &frames[0], &map), Status::Ok);
    (mover, lane, frames)
}

#[test]
fn a_page_that_is_moved_loses_no_write() {
    check(2, || {
        let (mut mover, mut lane, frames) = two_frames();
        let bytes = frames.clone();
        let writer = thread::spawn(move || {
            let mut written = 0;
            for step in 1..3 {
                if !lane.begin(step) {
                    thread::yield_now();
                    continue;
                }
                let frame = &bytes[lane.frame(0, 0).expect("the page is always shown") as usize];
                assert_eq!(frame.read(), written, "the previous step's write");
                written = step as u32;
                frame.write(written);
                lane.end();
            }
        });
        let job = Job {
            kind: JobKind::Move as u16,
            id: 2,
            frame: 1,
            src_frame: 0,
            victim_block: NONE_U32,
            use_lane: NONE_U16,
            ..Job::default()
        };
        mover.accept(&job, 0).expect("there is room");
        let status = loop {
            mover.poll();
            if let Some(op) = mover.next_copy() {
                frames[1].write(frames[0].read());
                mover.copied(&op, Ok(Copied { bytes: op.bytes.into(), digest: 0 }));
            }
            match mover.next_ended(0) {
                Some(ended) => break Status::from_code(ended.done.status),
                None => thread::yield_now(),
            }
        };
        assert_eq!(status, Some(Status::Ok));
        writer.join().expect("the lane ends");
    });
}

#[test]
fn a_pin_that_saw_its_page_resident_keeps_it() {
    check(3, || {
        let mut world = World::new();
        let evict = world.job(JobKind::Evict, 0, NONE_U32);
        let World { mut mover, lane, frame, .. } = world;
        let shared = Arc::clone(lane.shared());
        let pinner = thread::spawn(move || {
            let range = PageRange { seq: 0, first: 0, count: 1, plane: 0, planes: 1 };
            assert!(shared.pins().pin(shared.seqs(), &range).is_some());
            shared.resident(0, 0).is_some()
        });
        let status = carry(&mut mover, &frame, &evict);
        let kept = pinner.join().expect("the pinner ends");
        assert!(!kept || status == Status::Busy, "a page that a pin saw resident was removed");
        assert_eq!(lane.shared().resident(0, 0).is_some(), status == Status::Busy);
    });
}

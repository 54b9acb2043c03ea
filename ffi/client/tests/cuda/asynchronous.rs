//! Boundaries that a stream waits for: they end with every page, or with an error that the lane reports.

use super::{
    fake::{Command, LONG, PLANES, Script, byte},
    rig::{BLOCKS, Bound, Scene, Sim, attached_with, child, filled, is, passed, standing_in},
};
use kvtide_client::cuda::{Priority, Stream};
use kvtide_wire::{entry::Op, status::Status};
use std::time::{Duration, Instant};

/// Create a sequence with two pages only in host memory.
fn scene(timeout: Duration) -> Scene {
    let (fake, client, mut channel, mut bound) = attached_with(|options| options.timeout = timeout);
    let seq = filled(&mut channel, &mut bound, BLOCKS);
    channel.nop(LONG).expect("the daemon answers");
    let scene = Scene { fake, client, bound, seq };
    [(0, 0), (2, 1)].into_iter().for_each(|(index, plane)| scene.evict(index, plane));
    scene
}

#[test]
fn the_stream_goes_on_when_every_page_is_there() {
    let mut s = scene(LONG);
    for round in 0..4 {
        s.begin();
        let blocks = s.client.seq_blocks(s.seq).expect("blocks");
        for plane in 0..PLANES {
            s.bound.lane.boundary_async(plane).expect("at once");
        }
        // Enqueued behind the waits: this reads the table that the device shows then, which the host does not know yet.
        let device = s.bound.lane.device().expect("on a device");
        let table = s.bound.words(device.table, device.entries as usize);
        s.bound.lane.check().expect("nothing failed");
        s.bound.lane.end().expect("end");
        assert_eq!(s.status_word(), 0);
        assert_eq!(table, s.bound.lane.table(), "round {round}");
        for (index, block) in blocks.iter().enumerate() {
            for plane in 0..PLANES {
                let frame =
                    table[*block as usize * usize::from(PLANES) + usize::from(plane)].checked_sub(1).expect("shown");
                let page = s.bound.read_frame(frame);
                s.bound.done();
                assert!(is(&page, byte(s.seq, index as u32, plane)), "round {round}, block {index}, plane {plane}");
            }
        }
        let plane = (round % 2) as u16;
        assert_eq!(s.fake.evict(blocks[1], plane), Status::Ok);
        assert_eq!(s.fake.evict(blocks[2], 1 - plane), Status::Ok);
    }
    assert_eq!(s.client.stats().sample_failed, 0);
}

#[test]
fn a_graph_of_another_stream_is_captured_while_pages_stream_in() {
    let mut s = scene(LONG);
    let model = Stream::new(&s.bound.device, Priority::Normal).expect("a stream");
    let valid = kvtide_cuda_sim::captured(s.bound.device.context(), model.raw(), || {
        assert!(s.bound.read_all(s.seq, 3) > 0);
    });
    assert!(valid, "the agent's threads and the lane's calls leave the capture alone");
    s.bound.same_table();
}

#[test]
fn a_lane_whose_stream_is_captured_refuses_boundaries_and_goes_on_afterwards() {
    let mut s = scene(LONG);
    let (context, stream) = (s.bound.device.context(), s.bound.stream.raw());
    s.begin();
    let valid = kvtide_cuda_sim::captured(context, stream, || {
        let lane = &mut s.bound.lane;
        for refused in [lane.boundary(0).map(|_| ()), lane.boundary_async(0), lane.end(), lane.begin(&[])] {
            assert_eq!(refused.expect_err("captured").status(), Status::Invalid);
        }
    });
    assert!(valid, "the refusals enqueue nothing");
    s.bound.lane.end().expect("end");
    assert!(s.bound.read_all(s.seq, 3) > 0);
    s.bound.same_table();
}

#[test]
fn a_slab_that_goes_while_a_stream_waits_is_unregistered_after_the_wait() {
    // In a process of its own, because no stream of another test may wait.
    let name = "asynchronous::a_slab_that_goes_while_a_stream_waits_is_unregistered_after_the_wait";
    if !standing_in() {
        return;
    }
    if let Some(output) = child(name, &[("KVTIDE_SIM_STRICT", "1")]) {
        return passed(&output);
    }
    let mut s = scene(Duration::from_millis(500));
    let before = Sim::calls("cuMemHostUnregister");
    s.fake.tell(Command::Answer { op: Op::Fault, with: Script::Silence });
    s.begin();
    s.bound.lane.boundary_async(0).expect("at once");
    s.fake.tell(Command::SlabGone);
    s.bound.done();
    assert_eq!(s.bound.lane.check().expect_err("late").status(), Status::TimedOut);
    s.bound.lane.end().expect("end");
    let deadline = Instant::now() + LONG;
    while Sim::calls("cuMemHostUnregister") == before {
        assert!(Instant::now() < deadline, "the slab stays registered");
        std::thread::yield_now();
    }
    assert!(!s.bound.device.is_lost(), "nothing waited for the device while a stream waited");
    s.begin();
    let page = s.bound.read(s.seq, 1, 0);
    s.bound.done();
    assert!(is(&page, byte(s.seq, 1, 0)), "pages on the device are as before");
}

#[test]
fn a_driver_call_that_waits_for_the_device_does_not_hold_the_stream() {
    // In a process of its own, because the call could be another test's.
    let name = "asynchronous::a_driver_call_that_waits_for_the_device_does_not_hold_the_stream";
    if !standing_in() {
        return;
    }
    if let Some(output) = child(name, &[("KVTIDE_SIM_STRICT", "0")]) {
        return passed(&output);
    }
    let mut s = scene(Duration::from_millis(200));
    let block = s.client.seq_blocks(s.seq).expect("blocks")[1];
    s.fake.tell(Command::Answer { op: Op::Fault, with: Script::Silence });
    s.begin();
    s.bound.lane.boundary_async(0).expect("at once");
    s.bound.lane.boundary_async(1).expect("behind it");
    // Only the copy thread makes this call, and stays in it while the stream waits.
    Sim::block("cuMemcpyBatchAsync");
    let stored = s.fake.store(block, 1);
    s.bound.done();
    assert_eq!(s.status_word(), Status::TimedOut.code() as u32);
    assert_eq!(s.bound.lane.check().expect_err("late").status(), Status::TimedOut);
    s.bound.lane.end().expect("end");
    assert_eq!(stored.recv_timeout(LONG).expect("the copy ends"), Status::Ok);
    assert!(s.bound.read_all(s.seq, 3) > 0, "the next step gets the page");
    s.bound.same_table();
}

#[test]
fn the_daemons_death_lets_the_stream_go_with_an_error() {
    let mut s = scene(LONG);
    s.fake.tell(Command::Answer { op: Op::Fault, with: Script::Silence });
    s.begin();
    s.bound.lane.boundary_async(0).expect("at once");
    s.bound.lane.boundary_async(1).expect("behind it");
    s.fake.die();
    s.bound.done();
    assert_eq!(s.status_word(), Status::Daemon.code() as u32);
    assert_eq!(s.bound.lane.check().expect_err("a page is missing").status(), Status::Daemon);
    s.bound.lane.end().expect("a step ends without a daemon");
    // Pages on the device stay usable, and a new step clears the failure.
    let block = s.client.seq_blocks(s.seq).expect("blocks")[1];
    s.begin();
    s.bound.lane.check().expect("nothing failed in this step");
    assert_eq!(s.status_word(), 0);
    let page = s.bound.read(s.seq, 1, 0);
    s.bound.done();
    assert!(is(&page, byte(s.seq, 1, 0)) && s.bound.lane.pte(block, 0).is_some());
    let error = s.bound.lane.boundary_async(0).expect_err("no daemon loads the page");
    assert_eq!(error.status(), Status::Daemon);
    s.bound.lane.end().expect("end");
}

#[test]
fn a_page_that_never_comes_lets_the_stream_go_after_the_timeout() {
    let mut s = scene(Duration::from_millis(300));
    s.fake.tell(Command::Answer { op: Op::Fault, with: Script::Silence });
    s.begin();
    s.bound.lane.boundary_async(0).expect("at once");
    s.bound.lane.boundary_async(1).expect("behind it");
    s.bound.done();
    assert_eq!(s.status_word(), Status::TimedOut.code() as u32);
    assert_eq!(s.bound.lane.check().expect_err("late").status(), Status::TimedOut);
    assert_eq!(s.bound.lane.boundary(1).expect_err("the step has failed").status(), Status::TimedOut);
    s.bound.lane.end().expect("end");
    assert!(s.bound.read_all(s.seq, 3) > 0, "the next step gets the page");
    s.bound.same_table();
}

#[test]
fn an_error_of_the_daemon_lets_the_stream_go_with_it() {
    let mut s = scene(LONG);
    s.fake.tell(Command::Answer { op: Op::Fault, with: Script::Status(Status::Lost) });
    s.begin();
    s.bound.lane.boundary_async(0).expect("at once");
    s.bound.done();
    assert_eq!(s.status_word(), Status::Lost.code() as u32);
    assert_eq!(s.bound.lane.check().expect_err("lost").status(), Status::Lost);
    s.bound.lane.end().expect("end");
    assert!(s.bound.read_all(s.seq, 3) > 0);
}

#[test]
fn a_lane_that_is_dropped_lets_its_stream_go() {
    let mut s = scene(Duration::from_millis(300));
    s.fake.tell(Command::Answer { op: Op::Fault, with: Script::Silence });
    s.begin();
    s.bound.lane.boundary_async(0).expect("at once");
    let Scene { fake, client, bound, .. } = s;
    let Bound { lane, stream, .. } = bound;
    drop(lane);
    let mut again = client.lane(0).expect("given back");
    // SAFETY: the stream is dropped last.
    unsafe { again.bind(stream.raw()) }.expect("bound");
    drop((again, client, fake, stream));
}

#[test]
fn two_lanes_on_streams_wait_on_the_host() {
    let mut s = scene(LONG);
    let other = Bound::new(&s.client, 1);
    s.begin();
    assert_eq!(s.bound.lane.boundary_async(0).expect_err("streams share queues").status(), Status::State);
    s.bound.lane.boundary(0).expect("some pages are readable");
    s.bound.lane.end().expect("end");
    assert!(s.bound.read_all(s.seq, 3) > 0);
    drop(other);
}

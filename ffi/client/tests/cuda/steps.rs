//! Steps on a stream: resident pages, pages that arrive by faults, and mismatches that the integrity sample finds.

use super::{
    fake::{Command, Fake, LONG, PAGE, SLAB_BYTES, TOKENS},
    rig::{Bound, Sim, attached, child, engine_memory, filled, on_device, passed, standing_in},
};
use kvtide_client::{Client, CudaDevice, DeviceChoice, Options, StepSeq};
use kvtide_wire::status::Status;
use std::time::Instant;

#[test]
fn pages_leave_the_device_and_come_back_with_their_bytes() {
    let (fake, client, mut channel, mut bound) = attached();
    let seq = filled(&mut channel, &mut bound, 4);
    channel.nop(LONG).expect("the daemon answers");
    assert_eq!(bound.read_all(seq, 4), 0, "resident");
    let blocks = client.seq_blocks(seq).expect("blocks");
    for (index, plane) in [(1, 0), (3, 0), (0, 1)] {
        assert_eq!(fake.evict(blocks[index], plane), Status::Ok);
    }
    assert!(bound.read_all(seq, 4) > 0);
    bound.same_table();
    let stats = client.stats();
    assert_eq!(
        (stats.faults, stats.bytes_host_to_tier0, stats.bytes_tier0_to_host),
        (3, 3 * PAGE as u64, 3 * PAGE as u64)
    );
    assert_eq!((stats.sample_checked, stats.sample_failed), (3, 0));
    assert_eq!(stats.registered_bytes, SLAB_BYTES, "once");
    let copies = client.device_copies().expect("on a device");
    assert_eq!(copies.engine_bytes + copies.kernel_bytes, 6 * PAGE as u64, "{copies:?}");
    assert_eq!(copies.failed, 0);
    assert_eq!(bound.read_all(seq, 4), 0, "resident again");
}

#[test]
fn a_slab_is_registered_when_it_is_announced() {
    let fake = Fake::start();
    let client = Client::attach(on_device(&fake)).expect("attach");
    fake.tell(Command::Slab);
    let deadline = Instant::now() + LONG;
    while client.stats().registered_bytes == 0 {
        assert!(Instant::now() < deadline, "it is not registered");
        std::thread::yield_now();
    }
    assert_eq!(client.stats().registered_bytes, SLAB_BYTES);
}

#[test]
fn a_bit_that_flips_in_host_memory_is_found_on_the_device() {
    let (fake, client, mut channel, mut bound) = attached();
    let seq = filled(&mut channel, &mut bound, 1);
    channel.nop(LONG).expect("the daemon answers");
    let block = client.seq_blocks(seq).expect("blocks")[0];
    for byte in [0, 17, PAGE - 1] {
        assert_eq!(fake.evict(block, 1), Status::Ok);
        fake.flip(block, 1, byte);
        bound.lane.begin(&[StepSeq { seq, tokens: TOKENS }]).expect("begin");
        bound.lane.boundary(0).expect("resident");
        assert_eq!(bound.lane.boundary(1).expect_err("the bytes differ").status(), Status::Corrupt, "byte {byte}");
        bound.lane.end().expect("end");
        fake.flip(block, 1, byte);
        assert!(bound.read_all(seq, 1) > 0, "the stored bytes are served again");
        channel.nop(LONG).expect("the daemon knows the end of the load");
    }
    assert_eq!(client.stats().sample_failed, 3);
}

#[test]
fn a_lane_needs_a_stream_and_a_commit_the_end_of_its_step() {
    let fake = Fake::start();
    let client = Client::attach(on_device(&fake)).expect("attach");
    let mut channel = client.channel(0).expect("channel");
    let seq = channel.create_seq().expect("create");
    channel.reserve(seq, TOKENS, LONG).expect("reserve");
    let mut lane = client.lane(1).expect("lane");
    let step = [StepSeq { seq, tokens: TOKENS }];
    assert_eq!(lane.begin(&step).expect_err("on no stream").status(), Status::State);
    // SAFETY: rejected, because it is not a stream.
    assert_eq!(unsafe { lane.bind(0) }.expect_err("not a stream").status(), Status::Invalid);
    drop(lane);
    let mut bound = Bound::new(&client, 1);
    bound.lane.begin(&step).expect("begin");
    assert!(
        bound.lane.page(seq, 0, 0).is_none() && bound.lane.page_mut(seq, 0, 0).is_none(),
        "not this process's memory"
    );
    assert_eq!(channel.commit(seq, TOKENS).expect_err("the step's writes are only enqueued").status(), Status::State);
    // SAFETY: rejected, because a step is open.
    assert_eq!(unsafe { bound.lane.bind(bound.stream.raw()) }.expect_err("in a step").status(), Status::State);
    bound.lane.end().expect("end");
    channel.commit(seq, TOKENS).expect("commit");
}

#[test]
fn memory_of_the_engine_is_tier_0_where_it_is() {
    let fake = Fake::start();
    let memory = engine_memory(64 << 10);
    let (pointer, bytes) = (memory.address(), memory.bytes() as u64);
    let given = |bytes| DeviceChoice::GivenCuda { device: CudaDevice::Ordinal(0), pointer, bytes };
    let client = Client::attach(Options { device: given(bytes), ..on_device(&fake) }).expect("attach");
    assert_eq!(client.layout().tier0.addr() as u64, pointer);
    let mut channel = client.channel(0).expect("channel");
    let mut bound = Bound::new(&client, 0);
    let seq = filled(&mut channel, &mut bound, 2);
    assert_eq!(bound.read_all(seq, 2), 0);
    let other = Fake::start();
    let error = Client::attach(Options { device: given(1 << 10), ..on_device(&other) }).err().expect("too small");
    assert!(error.to_string().contains("1024 are given"), "{error}");
    drop((bound, channel, client, memory));
}

#[test]
fn a_resident_step_sends_and_launches_nothing() {
    if !standing_in() {
        return;
    }
    let Some(output) = child("steps::a_resident_step_sends_and_launches_nothing", &[]) else { return resident_steps() };
    passed(&output);
}

/// Runs in its own process, where the driver's calls are counted.
fn resident_steps() {
    let (_fake, client, mut channel, mut bound) = attached();
    let seq = filled(&mut channel, &mut bound, 3);
    channel.nop(LONG).expect("the daemon answers");
    let step = [StepSeq { seq, tokens: 3 * TOKENS }];
    let mut run = |steps: u32| {
        for _ in 0..steps {
            bound.lane.begin(&step).expect("begin");
            (0..2)
                .for_each(|plane| assert_eq!(bound.lane.boundary(plane).expect("boundary"), kvtide_client::Pass::All));
            bound.lane.end().expect("end");
        }
    };
    run(1);
    let calls = || ["cuLaunchKernel", "cuEventRecord", "cuStreamWaitEvent"].map(Sim::calls);
    let (before, counted) = (client.stats(), calls());
    run(20);
    let (after, now) = (client.stats(), calls());
    assert_eq!((after.requests - before.requests, after.steps_resident - before.steps_resident), (0, 20));
    assert_eq!([now[0] - counted[0], now[1] - counted[1], now[2] - counted[2]], [0, 20, 0], "one event a step");
}

#[test]
fn tier_0_shrinks_and_grows_under_a_lane() {
    let (_fake, client, mut channel, mut bound) = attached();
    let seq = filled(&mut channel, &mut bound, 2);
    channel.nop(LONG).expect("the daemon answers");
    let address = client.frame_ptr(0);
    assert_eq!(channel.resize_tier0(0, 8, LONG).expect("shrinks"), 8);
    assert!(client.frame_ptr(7).is_some() && client.frame_ptr(8).is_none());
    assert_eq!(bound.read_all(seq, 2), 0, "the remaining pages are complete");
    assert_eq!(channel.resize_tier0(0, 20, LONG).expect("grows"), 20);
    assert_eq!(client.frame_ptr(0), address, "addresses stay");
    let more = filled(&mut channel, &mut bound, 6);
    assert_eq!((bound.read_all(seq, 2), bound.read_all(more, 6)), (0, 0));
    bound.same_table();
}

#[test]
fn a_forked_child_is_told_and_harms_nobody() {
    use std::os::unix::process::CommandExt;
    let (_fake, client, mut channel, mut bound) = attached();
    let seq = filled(&mut channel, &mut bound, 1);
    let step = [StepSeq { seq, tokens: TOKENS }];
    bound.lane.begin(&step).expect("begin");
    let mut child = std::process::Command::new("true");
    {
        let (mut inherited, client) = (Some(bound), Some(client.clone()));
        // The parent keeps its handles: the closure takes them only in the child, where it runs.
        let handles = std::sync::Arc::new(std::sync::Mutex::new((inherited.take(), client)));
        let theirs = std::sync::Arc::clone(&handles);
        // SAFETY: runs between fork and exec. No other thread of the parent holds a lock that this takes: calls that are
        // rejected in a child do not take the copy thread's locks.
        unsafe {
            child.pre_exec(move || {
                let mut handles = theirs.try_lock().map_err(|_| std::io::Error::other("locked"))?;
                let bound = handles.0.as_mut().ok_or(std::io::Error::other("no lane"))?;
                let refused = bound.lane.boundary(0).err().map(|e| e.status());
                let asynchronous = bound.lane.boundary_async(0).err().map(|e| e.status());
                if (refused, asynchronous) != (Some(Status::Fork), Some(Status::Fork)) {
                    return Err(std::io::Error::other("not refused"));
                }
                handles.0.take();
                handles.1.take();
                Ok(())
            });
        }
        assert!(child.status().expect("the child drops its handles and continues").success());
        bound = handles.lock().expect("lock").0.take().expect("the parent's");
    }
    drop(child);
    bound.lane.boundary(0).expect("the parent's lane works");
    bound.lane.end().expect("end");
    assert_eq!(bound.read_all(seq, 1), 0);
}

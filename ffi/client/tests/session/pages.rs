//! Steps: pages that are resident, pages that arrive by a fault, pages that are pinned.

use super::fake::{LONG, PAGE, PLANES, TOKENS, attached, byte, filled, job};
use kvtide_client::{Lane, PageRange, Pass, StepSeq};
use kvtide_wire::{entry::JobKind, status::Status};

/// Read a whole step and check every byte. Return how many boundaries handed out a part.
pub fn read(lane: &mut Lane, seq: u32, blocks: u32) -> usize {
    let mut parts = 0;
    lane.begin(&[StepSeq { seq, tokens: u64::from(blocks) * TOKENS }]).expect("begin");
    for plane in 0..PLANES {
        let mut seen = vec![false; blocks as usize];
        let mut check = |lane: &Lane, index: u32| {
            let page = lane.page(seq, index, plane).expect("readable");
            assert_eq!(page, [byte(seq, index, plane); PAGE], "sequence {seq}, block {index}, plane {plane}");
            assert!(!std::mem::replace(&mut seen[index as usize], true), "handed out once");
        };
        loop {
            match lane.boundary(plane).expect("boundary") {
                Pass::All => {
                    (0..blocks).for_each(|index| check(lane, index));
                    break;
                }
                Pass::Part { count, last } => {
                    parts += 1;
                    assert_eq!(lane.ready().len(), count);
                    lane.ready().iter().for_each(|ready| check(lane, ready.index));
                    if last {
                        break;
                    }
                }
            }
        }
        assert!(seen.iter().all(|seen| *seen), "plane {plane} is complete");
    }
    lane.end().expect("end");
    parts
}

/// Return the indices that a whole step reads in each plane, in order.
pub fn read_indices(lane: &mut Lane, seq: u32, blocks: u32) -> Vec<Vec<u32>> {
    lane.begin(&[StepSeq { seq, tokens: u64::from(blocks) * TOKENS }]).expect("begin");
    let mut planes = Vec::new();
    for plane in 0..PLANES {
        let mut seen = Vec::new();
        loop {
            match lane.boundary(plane).expect("boundary") {
                Pass::All => seen = (0..blocks).collect(),
                Pass::Part { last, .. } => {
                    seen.extend(lane.ready().iter().map(|ready| ready.index));
                    if !last {
                        continue;
                    }
                }
            }
            break;
        }
        seen.sort_unstable();
        planes.push(seen);
    }
    lane.end().expect("end");
    planes
}

#[test]
fn a_resident_step_sends_nothing() {
    let (_fake, client, mut channel) = attached();
    let seq = filled(&client, &mut channel, 0, 3);
    channel.nop(LONG).expect("all earlier requests are answered");
    let mut lane = client.lane(1).expect("lane");
    let before = client.stats();
    for _ in 0..50 {
        assert_eq!(read(&mut lane, seq, 3), 0);
    }
    let after = client.stats();
    assert_eq!(after.requests, before.requests);
    assert_eq!((after.messages_before_steps, after.stalls, after.pages_missed), (0, 0, 0));
    assert_eq!(after.steps - before.steps, 50);
    assert_eq!(after.steps_resident - before.steps_resident, 50);
    assert_eq!(after.pages_resident - before.pages_resident, 50 * 3 * u64::from(PLANES));
}

#[test]
fn missing_pages_come_by_faults_with_their_bytes() {
    let (fake, client, mut channel) = attached();
    let seq = filled(&client, &mut channel, 0, 4);
    channel.nop(LONG).expect("the daemon answers");
    let blocks = client.seq_blocks(seq).expect("blocks");
    assert_eq!(fake.evict(blocks[1], 0), Status::Ok);
    assert_eq!(fake.evict(blocks[3], 0), Status::Ok);
    assert_eq!(fake.evict(blocks[0], 1), Status::Ok);
    let mut lane = client.lane(0).expect("lane");
    assert!(read(&mut lane, seq, 4) > 0);
    let stats = client.stats();
    assert_eq!((stats.faults, stats.pages_missed, stats.messages_before_steps), (3, 3, 1));
    assert_eq!((stats.jobs_host_to_tier0, stats.bytes_host_to_tier0), (3, 3 * PAGE as u64));
    assert_eq!((stats.jobs_tier0_to_host, stats.bytes_tier0_to_host), (3, 3 * PAGE as u64));
    assert_eq!((stats.sample_checked, stats.sample_failed), (3, 0));
    assert!(stats.stalls >= 2 && stats.stall_ns > 0);
    assert_eq!(read(&mut lane, seq, 4), 0, "resident now");
}

#[test]
fn a_bit_that_flips_in_host_memory_is_never_served() {
    let (fake, client, mut channel) = attached();
    let seq = filled(&client, &mut channel, 0, 2);
    channel.nop(LONG).expect("the daemon answers");
    let block = client.seq_blocks(seq).expect("blocks")[1];
    let mut lane = client.lane(0).expect("lane");
    let bytes = [0, 1, PAGE / 2, PAGE - 2, PAGE - 1];
    for (plane, byte) in (0..PLANES).flat_map(|plane| bytes.map(|byte| (plane, byte))) {
        assert_eq!(fake.evict(block, plane), Status::Ok);
        fake.flip(block, plane, byte);
        lane.begin(&[StepSeq { seq, tokens: 2 * TOKENS }]).expect("begin");
        let error = loop {
            match lane.boundary(plane) {
                Ok(Pass::Part { last, .. }) => {
                    assert!(lane.ready().iter().all(|ready| ready.index == 0) && !last, "byte {byte}: handed out");
                }
                Ok(Pass::All) => panic!("byte {byte}: all pages are handed out"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.status(), Status::Corrupt, "byte {byte}");
        assert!(lane.page(seq, 1, plane).is_none(), "byte {byte}: readable");
        lane.end().expect("end");
        fake.flip(block, plane, byte);
        assert!(read(&mut lane, seq, 2) > 0, "byte {byte}: the stored bytes are served again");
        channel.nop(LONG).expect("the daemon knows the end of the load");
    }
    let (stats, pages) = (client.stats(), 2 * bytes.len() as u64);
    assert_eq!((stats.sample_checked, stats.sample_failed, stats.jobs_failed), (2 * pages, pages, pages));
}

#[test]
fn a_pin_keeps_pages_and_is_local_when_they_are_resident() {
    let (fake, client, mut channel) = attached();
    let seq = filled(&client, &mut channel, 0, 3);
    channel.nop(LONG).expect("the daemon answers");
    let blocks = client.seq_blocks(seq).expect("blocks");
    let range = PageRange { seq, first: 0, count: 2, plane: 0, planes: 1 };
    let before = client.stats().requests;
    let pin = channel.acquire(range, LONG).expect("acquire");
    assert_eq!(client.stats().requests, before, "no message");
    assert_eq!(fake.evict(blocks[0], 0), Status::Busy);
    assert_eq!(fake.evict(blocks[0], 1), Status::Ok, "another plane");
    assert_eq!(fake.evict(blocks[2], 0), Status::Ok, "another block");
    assert_eq!(channel.truncate(seq, 8, LONG).expect_err("pinned").status(), Status::Busy);
    let again = kvtide_client::Pin::from_raw(channel.acquire(range, LONG).expect("a second pin").into_raw());
    channel.release(pin).expect("release");
    assert_eq!(fake.evict(blocks[0], 0), Status::Busy, "pinned once more");
    let raw = again.into_raw();
    channel.release(kvtide_client::Pin::from_raw(raw)).expect("release");
    let error = channel.release(kvtide_client::Pin::from_raw(raw)).expect_err("a double release");
    assert_eq!(error.status(), Status::State);
    assert_eq!(fake.evict(blocks[0], 0), Status::Ok);

    let missing = PageRange { seq, first: 0, count: 3, plane: 0, planes: PLANES };
    let pin = channel.acquire(missing, LONG).expect("the missing pages are loaded");
    assert_eq!(fake.evict(blocks[2], 0), Status::Busy);
    channel.release(pin).expect("release");
    let beyond = PageRange { seq, first: 2, count: 2, plane: 0, planes: 1 };
    assert_eq!(channel.acquire(beyond, LONG).expect_err("no such block").status(), Status::Range);
    let beyond = PageRange { seq, first: 0, count: 1, plane: 1, planes: 2 };
    assert_eq!(channel.acquire(beyond, LONG).expect_err("no such plane").status(), Status::Range);
}

#[test]
fn sealed_pages_are_not_written_and_unsealed_ones_belong_to_one_step() {
    let (_fake, client, mut channel) = attached();
    let seq = filled(&client, &mut channel, 0, 1);
    channel.reserve(seq, 2 * TOKENS, LONG).expect("reserve");
    let (mut lane, mut other) = (client.lane(0).expect("lane"), client.lane(1).expect("lane"));
    let step = [StepSeq { seq, tokens: TOKENS + 1 }];
    assert!(lane.page(seq, 0, 0).is_none(), "no step is open");
    lane.begin(&step).expect("begin");
    assert!(lane.page_mut(seq, 0, 0).is_none() && lane.page(seq, 0, 0).is_some(), "sealed");
    assert!(lane.page_mut(seq, 1, 0).is_some());
    assert_eq!(other.begin(&step).expect_err("in another step").status(), Status::State);
    assert_eq!(lane.begin(&step).expect_err("begun").status(), Status::State);
    assert_eq!(channel.fork(seq, LONG).expect_err("in a step").status(), Status::State);
    assert_eq!(channel.drop_seq(seq).expect_err("in a step").status(), Status::State);
    assert_eq!(lane.boundary(PLANES).expect_err("no such plane").status(), Status::Range);
    assert_eq!(lane.boundary(0).expect("boundary"), Pass::All);
    assert_eq!(lane.boundary(0).expect_err("complete").status(), Status::State);
    lane.end().expect("end");
    assert_eq!(lane.end().expect_err("ended").status(), Status::State);
    other.begin(&step).expect("the sequence is free again");
    drop(other);
    channel.drop_seq(seq).expect("dropping the lane ended its step");
    assert_eq!(channel.commit(seq, TOKENS).expect_err("dropped").status(), Status::NotFound);
}

#[test]
fn a_job_for_an_unknown_host_frame_is_refused() {
    let (fake, client, mut channel) = attached();
    let seq = filled(&client, &mut channel, 0, 1);
    let block = client.seq_blocks(seq).expect("blocks")[0];
    assert_eq!(fake.evict(block, 0), Status::Ok); // the daemon sends the slab
    let load = job(JobKind::CopyIn, block, 0, 20);
    assert_eq!(fake.job(kvtide_wire::entry::Job { slot: 1 << 20, ..load }), Status::Invalid);
    assert_eq!(client.stats().jobs_invalid, 1);
}

//! Mistakes of the caller: each is refused with a reason of its own, and before anything is sent.

use super::fake::{Command, FRAMES, Fake, LONG, PLANES, Script, TOKENS, attached, filled};
use kvtide_client::{Channel, Contract, PageRange, Pin, Request, Result, StepSeq, Ticket};
use kvtide_wire::{
    entry::{Advice, Completion, Level, Op},
    lists::HASHED_BLOCKS_MAX,
    status::Status,
};
use std::{path::Path, time::Duration};

/// Check that a call failed with this status and a reason that contains `says`, not only with the text of the status.
#[track_caller]
fn refused<T>(result: Result<T>, status: Status, says: &str) {
    let error = result.err().expect("refused");
    let (text, general) = (error.to_string(), status.message().to_str().expect("UTF-8"));
    assert_eq!(error.status(), status, "{text}");
    assert!(text.contains(says) && !text.contains(general), "{says:?}: {text}");
}

/// Lease a prefix of `count` blocks.
fn lease(fake: &Fake, channel: &mut Channel, count: u32) -> u32 {
    let answer = Completion::new(Op::Lease as u16, 0, Status::Ok);
    fake.tell(Command::Answer { op: Op::Lease, with: Script::Raw(answer, vec![count, 0, 0]) });
    channel.lease(1, count, LONG, LONG).expect("leased").seq
}

#[test]
fn blocks_that_do_not_exist_are_refused_before_anything_is_sent() {
    let (mut fake, client, mut channel) = attached();
    let lease = lease(&fake, &mut channel, 2);
    let hashes: Vec<u128> = (1..=250).collect();
    let store = |channel: &mut Channel, blocks: &[u32]| {
        channel.store((0, 0), &hashes[..blocks.len()], blocks, Level::Published, LONG)
    };
    let load = |blocks| Request::Load { lease, first: 0, blocks };
    for result in [store(&mut channel, &[0]), channel.load(lease, 0, &[0], LONG)] {
        refused(result, Status::State, "no blocks are registered: call set_blocks first");
    }
    refused(channel.submit(load(&[0]), LONG, 0), Status::State, "call set_blocks first");
    client.allocate_blocks(4).expect("allocate");
    refused(store(&mut channel, &[0, 4]), Status::Range, "blocks[1] is 4; only 4 blocks are registered");
    // In the third request of a long call: the first one is not sent either.
    let mut long = vec![0; 250];
    long[240] = 4;
    refused(store(&mut channel, &long), Status::Range, "blocks[240] is 4");
    refused(channel.load(lease, 0, &[9], LONG), Status::Range, "blocks[0] is 9");
    refused(channel.submit(load(&[9]), LONG, 0), Status::Range, "blocks[0] is 9");
    let fewer = format!("blocks 1 to 3 of lease {lease}, which has 2 blocks");
    refused(channel.load(lease, 1, &[0, 1], LONG), Status::Range, &fewer);
    refused(channel.submit(Request::Load { lease, first: 1, blocks: &[0, 1] }, LONG, 0), Status::Range, &fewer);
    refused(channel.load(lease, 0, &[0; 513], LONG), Status::Range, "which has 2 blocks");
    let unpaired = channel.store((0, 0), &hashes[..2], &[0], Level::Published, LONG);
    refused(unpaired, Status::Invalid, "2 hashes for 1 blocks");
    let mut reserved = hashes.clone();
    reserved[200] = 0;
    let stored = channel.store((0, 0), &reserved, &[0; 250], Level::Published, LONG);
    refused(stored, Status::Invalid, "hashes[200] is 0");
    let orphan = channel.store((3, 0), &hashes[..1], &[0], Level::Published, LONG);
    refused(orphan, Status::Invalid, "block 3 of a prefix needs its parent's hash");
    let deep = channel.store((u32::MAX, 1), &hashes[..1], &[0], Level::Published, LONG);
    refused(deep, Status::Range, "less than 2^32 blocks");
    channel.load(lease, 0, &[3], LONG).expect("loaded");
    channel.end_lease(lease).expect("ended");
    refused(channel.load(lease, 0, &[0], LONG), Status::NotFound, "this channel has no");
    refused(channel.end_lease(lease), Status::NotFound, "this channel has no");
    let sent = fake.die();
    let copies = [Op::LoadBlocks, Op::StoreBlocks].map(|op| op as u16);
    assert_eq!(sent.iter().filter(|request| copies.contains(&request.op)).count(), 1);
}

#[test]
fn failed_blocks_are_counted_from_the_start_of_the_call() {
    let (fake, client, mut channel) = attached();
    client.allocate_blocks(1).expect("allocate");
    let part = HASHED_BLOCKS_MAX as u32;
    for (status, failed) in [(Status::Ok, vec![]), (Status::NotAdmitted, (5..part).collect())] {
        let answer = Completion::new(Op::StoreBlocks as u16, 0, status);
        fake.tell(Command::Answer { op: Op::StoreBlocks, with: Script::Raw(answer, failed) });
    }
    let hashes: Vec<u128> = (1..=250).collect();
    let stored = channel.store((0, 0), &hashes, &[0; 250], Level::Published, LONG).expect("stored in part");
    let failed: Vec<u32> = (part + 5..250).collect();
    assert_eq!((stored.status, stored.failed), (Status::NotAdmitted, failed), "all blocks after a failed one fail too");
}

#[test]
fn every_refusal_of_a_channel_has_a_reason() {
    let (fake, client, mut channel) = attached();
    refused(client.channel(0), Status::State, "in use");
    refused(client.channel(9), Status::Range, "attached with 1");
    refused(client.lane(9), Status::Range, "attached with 2");
    refused(client.reattach(Path::new("/nowhere")), Status::State, "alive");
    refused(client.seq_blocks(7), Status::NotFound, "no such sequence");
    refused(client.name_blocks(0, &[0]), Status::State, "call set_blocks first");
    client.allocate_blocks(1).expect("allocate");
    refused(client.name_blocks(0, &[0]), Status::State, "a single member");

    let seq = filled(&client, &mut channel, 0, 2);
    refused(channel.reserve(7, 1, LONG), Status::NotFound, "no sequence or lease 7");
    refused(channel.drop_seq(7), Status::NotFound, "no sequence or lease 7");
    refused(channel.reserve(seq, 21 * TOKENS, LONG), Status::Limit, "20 blocks of 16 tokens");
    refused(channel.commit(seq, 3 * TOKENS), Status::State, "room for 32");
    refused(channel.commit(seq, 1), Status::State, "32 are committed");
    refused(channel.truncate(seq, 33, LONG), Status::Range, "32 are committed");
    refused(channel.publish(seq, 1, 1, &[1, 2], Level::Published, LONG), Status::State, "2 blocks are sealed");
    refused(channel.publish(seq, 0, 0, &[1, 0], Level::Published, LONG), Status::Invalid, "hashes[1] is 0");
    refused(channel.publish(seq, 1, 0, &[1], Level::Published, LONG), Status::Invalid, "parent's hash");
    refused(channel.publish(seq, 0, 1, &[1], Level::Published, LONG), Status::Invalid, "no parent");
    refused(channel.attach_prefix(seq, &[1], LONG), Status::State, "2 blocks already");
    refused(channel.resume(seq, LONG), Status::State, "not parked");
    refused(channel.advise(seq, 1, 5, Advice::Cold), Status::Range, "the sequence has 2");
    refused(channel.contract(seq, Contract::Approx { permille: 1001 }, LONG), Status::Range, "1 to 1000");
    let range = PageRange { seq, first: 0, count: 1, plane: 0, planes: 1 };
    refused(channel.acquire(PageRange { count: 3, ..range }, LONG), Status::Range, "the sequence has 2");
    refused(channel.acquire(PageRange { planes: PLANES + 1, ..range }, LONG), Status::Range, "the space has 2");
    let pin = channel.acquire(range, LONG).expect("pinned").into_raw();
    refused(channel.truncate(seq, 1, LONG), Status::Busy, "release the pin");
    channel.release(Pin::from_raw(pin)).expect("released");
    refused(channel.release(Pin::from_raw(pin)), Status::State, "released before");
    refused(channel.resize_tier0(1, 2, LONG), Status::Range, "1 size classes");
    refused(channel.resize_tier0(0, FRAMES + 1, LONG), Status::Range, "attached with 24");
    let ticket = Ticket::from_raw(12345);
    refused(channel.wait(ticket, LONG), Status::NotFound, "no such ticket");
    refused(channel.poll(ticket), Status::NotFound, "no such ticket");
    refused(channel.cancel(ticket), Status::NotFound, "no such ticket");

    refused(channel.lease(1, 0, LONG, LONG), Status::Invalid, "at least one block");
    refused(channel.lease(1, 21, LONG, LONG), Status::Limit, "20 blocks");
    for (status, says) in [(Status::NotFound, "is cached"), (Status::Invalid, "another number of blocks")] {
        fake.tell(Command::Answer { op: Op::Lease, with: Script::Status(status) });
        refused(channel.lease(1, 1, LONG, LONG), status, says);
    }
    let lease = lease(&fake, &mut channel, 2);
    refused(channel.truncate(lease, 0, LONG), Status::State, "it is a lease");
    let slots: Vec<u32> = std::iter::from_fn(|| channel.create_seq().ok()).collect();
    assert_eq!(slots.len(), 6, "seqs_max sequences and leases");
    refused(channel.create_seq(), Status::Limit, "all 8 ids are in use");
}

#[test]
fn every_refusal_of_a_lane_has_a_reason() {
    let (_fake, client, mut channel) = attached();
    let seq = filled(&client, &mut channel, 0, 2);
    let (mut lane, mut other) = (client.lane(0).expect("lane"), client.lane(1).expect("lane"));
    let step = StepSeq { seq, tokens: 2 * TOKENS };
    refused(lane.end(), Status::State, "no step has begun");
    refused(lane.boundary(0), Status::State, "no step has begun");
    refused(lane.begin(&[StepSeq { seq: 7, tokens: 1 }]), Status::NotFound, "there is no sequence 7");
    refused(lane.begin(&[StepSeq { tokens: 33, ..step }]), Status::Range, "room for 32");
    refused(lane.begin(&[step, step]), Status::State, "in the step twice");
    refused(lane.begin(&[step; 513]), Status::Limit, "at most 512");
    lane.begin(&[step]).expect("begin");
    refused(lane.begin(&[step]), Status::State, "a step is open");
    refused(other.begin(&[step]), Status::State, "in the step of another lane");
    refused(channel.drop_seq(seq), Status::State, "in a lane's step");
    refused(channel.fork(seq, LONG), Status::State, "in a lane's step");
    refused(lane.boundary(PLANES), Status::Range, "2 planes");
    refused(lane.query(7, 0, &[]), Status::State, "not in an open step");
    refused(lane.sums(seq, 0, &[]), Status::State, "the last boundary");
    lane.boundary(1).expect("boundary");
    refused(lane.boundary(0), Status::State, "ascending order");
    refused(lane.boundary(1), Status::State, "had a boundary");
    refused(lane.mass(seq, PLANES, &[]), Status::Range, "2 planes");
    refused(lane.mass(seq, 1, &[]), Status::Range, "2 pages");
    lane.end().expect("end");
    channel.park(seq, Duration::ZERO).expect("park");
    refused(lane.begin(&[step]), Status::State, "parked");
    refused(channel.fork(seq, LONG), Status::State, "parked");
}

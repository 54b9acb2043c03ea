//! Failing copies, a full or lost device, a replaced daemon.

use super::{
    fake::{Fake, LONG, TOKENS},
    rig::{Bound, Sim, attached, child, filled, on_device, passed, standing_in},
};
use kvtide_client::{Client, StepSeq};
use kvtide_wire::status::Status;

/// CUDA error numbers.
const INVALID_VALUE: u32 = 1;
const ECC_UNCORRECTABLE: u32 = 214;

#[test]
fn a_copy_that_fails_is_an_error_and_then_a_miss() {
    if !standing_in() {
        return;
    }
    let Some(output) = child("faults::a_copy_that_fails_is_an_error_and_then_a_miss", &[]) else {
        return failed_copy();
    };
    passed(&output);
}

/// Runs in its own process: the next copy of the driver fails, in any session.
fn failed_copy() {
    let (fake, client, mut channel, mut bound) = attached();
    let seq = filled(&mut channel, &mut bound, 2);
    channel.nop(LONG).expect("the daemon answers");
    let block = client.seq_blocks(seq).expect("blocks")[0];
    assert_eq!(fake.evict(block, 0), Status::Ok);
    bound.lane.begin(&[StepSeq { seq, tokens: 2 * TOKENS }]).expect("begin");
    for call in ["cuMemcpyBatchAsync", "cuMemcpyAsync", "cuLaunchKernel"] {
        Sim::fail(call, 1, INVALID_VALUE);
    }
    let mut failed = None;
    while failed.is_none() {
        match bound.lane.boundary(0) {
            Ok(kvtide_client::Pass::Part { last: false, .. }) => {}
            Ok(pass) => panic!("{pass:?}: the page cannot be readable"),
            Err(error) => failed = Some(error),
        }
    }
    assert_eq!(failed.expect("just seen").status(), Status::Io);
    bound.lane.end().expect("end");
    assert_eq!(client.stats().jobs_failed, 1);
    Sim::mend();
    assert!(bound.read_all(seq, 2) > 0, "another try succeeds");
    assert!(client.alive(), "the session continues");
}

#[test]
fn a_lost_device_ends_its_session_and_no_other() {
    if !standing_in() {
        return;
    }
    let Some(output) = child("faults::a_lost_device_ends_its_session_and_no_other", &[]) else { return lost_device() };
    passed(&output);
}

fn lost_device() {
    let (_fake, client, mut channel, mut bound) = attached();
    let plain = Fake::start();
    let other = plain.attach();
    let seq = filled(&mut channel, &mut bound, 2);
    channel.nop(LONG).expect("the daemon answers");
    bound.lane.begin(&[StepSeq { seq, tokens: 2 * TOKENS }]).expect("begin");
    bound.lane.boundary(0).expect("resident");
    Sim::lose(ECC_UNCORRECTABLE);
    let error = bound.lane.end().expect_err("its event cannot be recorded");
    assert_eq!(error.status(), Status::Device);
    assert_eq!(channel.nop(LONG).expect_err("the session has ended").status(), Status::Device);
    assert!(!client.alive());
    assert_eq!(bound.lane.begin(&[StepSeq { seq, tokens: 1 }]).expect_err("no device").status(), Status::Device);
    other.channel(0).expect("channel").nop(LONG).expect("another session continues");
    let third = Fake::start();
    let error = Client::attach(on_device(&third)).err().expect("no device");
    assert_eq!(error.status(), Status::Device);
    assert!(error.to_string().contains("cuda:0"), "{error}");
}

#[test]
fn a_full_device_refuses_with_its_numbers() {
    if !standing_in() {
        return;
    }
    let test = "faults::a_full_device_refuses_with_its_numbers";
    let Some(output) = child(test, &[("KVTIDE_SIM_MEMORY", "1048576")]) else { return full_device() };
    passed(&output);
}

fn full_device() {
    let fake = Fake::start();
    let error = Client::attach(on_device(&fake)).err().expect("no room");
    assert_eq!(error.status(), Status::Device);
    assert!(error.to_string().contains("out of memory") && error.to_string().contains("1048576"), "{error}");
    let plain = Fake::start();
    plain.attach().channel(0).expect("channel").nop(LONG).expect("a CPU engine needs no device memory");
}

#[test]
fn a_new_daemon_takes_over_what_the_device_holds() {
    let (mut first, client, mut channel, mut bound) = attached();
    let kept = filled(&mut channel, &mut bound, 3);
    channel.nop(LONG).expect("the daemon answers");
    let second = Fake::start();
    first.die();
    while client.alive() {
        std::thread::yield_now(); // bounded: the copy thread watches the socket
    }
    drop((channel, bound));
    let fresh = client.reattach(&second.socket).expect("reattach");
    assert_eq!(fresh.layout().tier0, client.layout().tier0, "the same memory");
    let mut bound = Bound::new(&fresh, 0);
    assert_eq!(bound.read_all(kept, 3), 0, "all of it is on the device");
    bound.same_table();
    let mut channel = fresh.channel(0).expect("channel");
    channel.nop(LONG).expect("the daemon answers");
    let block = fresh.seq_blocks(kept).expect("blocks")[1];
    assert_eq!(second.evict(block, 1), Status::Ok);
    assert!(bound.read_all(kept, 3) > 0);
}

//! The death of the daemon, and the recovery from it.

use super::{
    fake::{Command, Fake, LONG, Script, TOKENS, attached, filled},
    pages::read,
};
use kvtide_client::{Request, StepSeq};
use kvtide_wire::{entry::Op, status::Status};

#[test]
fn waits_end_with_the_daemon_and_tier_0_stays_readable() {
    let (mut fake, client, mut channel) = attached();
    let kept = filled(&client, &mut channel, 0, 2);
    let gone = filled(&client, &mut channel, 0, 1);
    channel.nop(LONG).expect("the daemon answers");
    assert_eq!(fake.evict(client.seq_blocks(gone).expect("blocks")[0], 1), Status::Ok);
    fake.tell(Command::Answer { op: Op::Fault, with: Script::Silence });
    fake.tell(Command::Answer { op: Op::Nop, with: Script::Silence });
    let waiter = {
        let client = client.clone();
        std::thread::spawn(move || {
            let mut lane = client.lane(1).expect("lane");
            lane.begin(&[StepSeq { seq: gone, tokens: TOKENS }]).expect("begin");
            lane.boundary(0).expect("resident");
            let status = lane.boundary(1).expect_err("no daemon loads the page").status();
            lane.end().expect("a step ends without a daemon");
            status
        })
    };
    let ticket = channel.submit(Request::Nop, LONG, 0).expect("submit");
    while client.stats().faults == 0 {
        std::thread::yield_now(); // bounded by the boundary's own timeout
    }
    fake.die();
    assert_eq!(waiter.join().expect("no panic"), Status::Daemon);
    let ended = channel.wait(ticket, LONG).expect("ends");
    assert_eq!(ended.result.expect_err("no answer").status(), Status::Daemon);
    assert!(!client.alive());
    assert_eq!(channel.nop(LONG).expect_err("the daemon is dead").status(), Status::Daemon);
    assert_eq!(channel.commit(kept, 2 * TOKENS).expect_err("the daemon is dead").status(), Status::Daemon);
    let mut lane = client.lane(0).expect("lane");
    assert_eq!(read(&mut lane, kept, 2), 0, "all of it is in tier 0");
    channel.drop_seq(gone).expect("local");
}

#[test]
fn a_new_daemon_takes_over_what_tier_0_holds() {
    let mut first = Fake::start();
    let client = first.attach();
    let mut channel = client.channel(0).expect("channel");
    let kept = filled(&client, &mut channel, 0, 3);
    let gone = filled(&client, &mut channel, 0, 2);
    channel.nop(LONG).expect("the daemon answers");
    assert_eq!(first.evict(client.seq_blocks(gone).expect("blocks")[0], 0), Status::Ok);
    let second = Fake::start();
    assert_eq!(client.reattach(&second.socket).err().expect("the first daemon is alive").status(), Status::State);
    first.die();
    while client.alive() {
        std::thread::yield_now(); // its copy thread sees the socket close
    }
    let error = client.reattach(&second.socket).err().expect("a channel is held");
    assert_eq!(error.status(), Status::State);
    drop(channel);
    let error = client.reattach(&first.socket).err().expect("no daemon listens");
    assert_eq!(error.status(), Status::Daemon);
    let next = client.reattach(&second.socket).expect("reattach");
    assert_eq!(client.channel(0).err().expect("the session was taken over").status(), Status::State);
    assert_eq!(client.reattach(&second.socket).err().expect("a session reattaches once").status(), Status::State);

    let mut channel = next.channel(0).expect("channel");
    let mut lane = next.lane(0).expect("lane");
    assert_eq!(read(&mut lane, kept, 3), 0);
    let lost = [StepSeq { seq: gone, tokens: TOKENS }];
    assert_eq!(lane.begin(&lost).expect_err("its page is gone").status(), Status::Lost);
    assert_eq!(channel.reserve(gone, 1, LONG).expect_err("a page is gone").status(), Status::Lost);
    channel.drop_seq(gone).expect("drop");
    channel.commit(kept, 3 * TOKENS).expect("the sequence is usable");
    channel.reserve(kept, 4 * TOKENS, LONG).expect("grows");
    channel.nop(LONG).expect("the daemon answers");
    let block = next.seq_blocks(kept).expect("blocks")[1];
    assert_eq!(second.evict(block, 1), Status::Ok, "the new daemon knows the frames");
    assert!(read(&mut lane, kept, 3) > 0, "the new daemon loads the page");
    let fresh = filled(&next, &mut channel, 1, 1);
    assert_ne!(fresh, kept);
}

#[test]
fn detaching_ends_the_session_and_other_threads_waits() {
    let (fake, client, mut channel) = attached();
    fake.tell(Command::Answer { op: Op::Nop, with: Script::Silence });
    let waiter = std::thread::spawn(move || channel.nop(LONG).expect_err("silence").status());
    while client.stats().requests == 0 {
        std::thread::yield_now(); // bounded by the call's own timeout
    }
    client.detach();
    assert_eq!(waiter.join().expect("no panic"), Status::Daemon);
    assert!(!client.alive());
}

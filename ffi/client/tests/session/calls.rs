//! Calls: blocking and asynchronous forms, limits.

use super::fake::{Command, FRAMES, Fake, LONG, PLANES, Script, TOKENS, attached, filled, options};
use kvtide_client::{Client, Options, Outcome, Request, StepSeq};
use kvtide_wire::{entry::Op, status::Status};
use std::time::Duration;

#[test]
fn commits_reach_the_daemon_in_order_and_once() {
    let (mut fake, client, mut channel) = attached();
    let seq = channel.create_seq().expect("create");
    channel.reserve(seq, TOKENS + 1, LONG).expect("two blocks");
    assert_eq!(client.seq_blocks(seq).expect("blocks").len(), 2);
    channel.commit(seq, TOKENS).expect("commit");
    channel.reserve(seq, TOKENS + 1, LONG).expect("the last block has room");
    assert_eq!(client.seq_blocks(seq).expect("blocks").len(), 2);
    assert_eq!(channel.commit(seq, 2 * TOKENS + 1).expect_err("beyond the reserved tokens").status(), Status::State);
    assert_eq!(channel.commit(seq, TOKENS - 1).expect_err("before the committed length").status(), Status::State);
    channel.nop(LONG).expect("the daemon answers");
    let seen = fake.die();
    let ops: Vec<Op> = seen.iter().filter_map(|request| Op::from_code(request.op)).collect();
    let told: Vec<Op> = ops.iter().copied().filter(|op| [Op::Reserve, Op::Commit].contains(op)).collect();
    assert_eq!(told, [Op::Reserve, Op::Commit], "each in order and only once: {ops:?}");
}

#[test]
fn asynchronous_calls_end_once_and_a_full_channel_says_so() {
    let (fake, _client, mut channel) = attached();
    let mut tickets = Vec::new();
    let full = loop {
        fake.tell(Command::Answer { op: Op::Nop, with: Script::Silence });
        match channel.submit(Request::Nop, LONG, 7) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error.status(),
        }
    };
    assert_eq!(full, Status::Again);
    assert!(tickets.len() >= 6 && channel.poll_any().is_none());
    assert_eq!(channel.wait(tickets[0], Duration::from_millis(10)).expect_err("silence").status(), Status::TimedOut);
    channel.cancel(tickets[0]).expect("one tag is kept for cancels");
    assert_eq!(channel.poll(tickets[0]).expect("the ticket is still valid"), None);
    let ghost = kvtide_client::Ticket::from_raw(12345);
    assert_eq!(channel.poll(ghost).expect_err("unknown").status(), Status::NotFound);
    assert_eq!(channel.cancel(ghost).expect_err("unknown").status(), Status::NotFound);
}

#[test]
fn a_submitted_call_comes_back_with_its_user_word_and_outcome() {
    let (fake, client, mut channel) = attached();
    let seq = channel.create_seq().expect("create");
    let waits = channel.create_seq().expect("create");
    fake.tell(Command::Answer { op: Op::Reserve, with: Script::Silence });
    channel.submit(Request::Reserve { seq: waits, tokens: 1 }, LONG, 41).expect("submit");
    let second = channel.submit(Request::Reserve { seq: waits, tokens: 1 }, LONG, 0);
    assert_eq!(second.expect_err("a reservation is in flight").status(), Status::Again);
    let ticket = channel.submit(Request::Reserve { seq, tokens: 3 * TOKENS }, LONG, 42).expect("submit");
    let completed = channel.wait(ticket, LONG).expect("ends");
    assert_eq!((completed.ticket, completed.user), (ticket, 42));
    assert_eq!(completed.result.expect("granted"), Outcome::Done);
    assert_eq!(client.seq_blocks(seq).expect("blocks").len(), 3);
    assert_eq!(channel.wait(ticket, LONG).expect_err("the ticket was already used").status(), Status::NotFound);
    let ticket = channel.submit(Request::Reserve { seq, tokens: 1 }, LONG, 1).expect("submit");
    assert_eq!(channel.poll_any().expect("a request without work ends at once").ticket, ticket);
}

#[test]
fn refusals_reach_the_caller_and_leave_the_mirror_alone() {
    let (fake, client, mut channel) = attached();
    let seq = filled(&client, &mut channel, 0, 2);
    for (op, status) in [(Op::Fork, Status::NoSpace), (Op::Truncate, Status::NoSpace), (Op::Reserve, Status::TooBig)] {
        fake.tell(Command::Answer { op, with: Script::Status(status) });
        let error = match op {
            Op::Fork => channel.fork(seq, LONG).map(|_| ()),
            Op::Truncate => channel.truncate(seq, 3, LONG),
            _ => channel.reserve(seq, 5 * TOKENS, LONG),
        }
        .expect_err("refused");
        assert_eq!(error.status(), status);
        assert_eq!(client.seq_blocks(seq).expect("blocks").len(), 2);
        let mut lane = client.lane(0).expect("lane");
        lane.begin(&[StepSeq { seq, tokens: 2 * TOKENS }]).expect("lanes may use the sequence again");
    }
    assert_eq!(channel.truncate(seq, 1000, LONG).expect_err("more than committed").status(), Status::Range);
    assert_eq!(channel.reserve(seq, 21 * TOKENS, LONG).expect_err("over the bound").status(), Status::Limit);
    assert_eq!(channel.reserve(77, 1, LONG).expect_err("no such").status(), Status::NotFound);
    let error = channel.publish(seq, 1, 0, &[1, 2], kvtide_wire::entry::Level::Published, LONG);
    assert_eq!(error.expect_err("not sealed").status(), Status::State);
    let slots: Vec<_> = std::iter::from_fn(|| channel.create_seq().ok()).collect();
    assert_eq!(slots.len(), 7, "seqs_max sequences");
    assert_eq!(channel.create_seq().expect_err("full").status(), Status::Limit);
}

#[test]
fn options_that_cannot_be_are_refused_before_anybody_is_asked() {
    let fake = Fake::start();
    let bad = |change: fn(&mut kvtide_client::Options)| {
        let mut options = options(fake.socket.clone());
        change(&mut options);
        let error = Client::attach(options).err().expect("refused");
        (error.status(), error.to_string())
    };
    for (status, text) in [
        bad(|o| o.lanes = 0),
        bad(|o| o.channels = 15),
        bad(|o| o.tier0_frames = vec![]),
        bad(|o| o.tier0_frames = vec![FRAMES, 1]),
        bad(|o| o.space.planes.clear()),
        bad(|o| o.space.page_tokens = 0),
        bad(|o| o.space.name = String::new()),
        bad(|o| o.depth = 5000),
    ] {
        assert_eq!(status, Status::Invalid, "{text}");
        assert!(text.starts_with("option "), "{text}");
    }
    let nowhere = options(std::env::temp_dir().join("kvtide-no-daemon-listens-here"));
    let error = Client::attach(nowhere).err().expect("no daemon listens");
    assert_eq!(error.status(), Status::Daemon, "{error}");
    assert!(error.to_string().contains("kvtide-no-daemon-listens-here"), "{error}");
}

#[test]
fn handles_have_one_owner_and_are_given_back() {
    let (_fake, client, channel) = attached();
    assert_eq!(client.channel(0).err().expect("taken").status(), Status::State);
    assert_eq!(client.channel(1).err().expect("no such").status(), Status::Range);
    assert_eq!(client.lane(2).err().expect("no such").status(), Status::Range);
    drop(channel);
    let mut channel = client.channel(0).expect("given back");
    let seq = channel.create_seq().expect("create");
    drop(channel);
    let mut channel = client.channel(0).expect("given back");
    channel.reserve(seq, 1, LONG).expect("its sequences stay");
    let layout = client.layout();
    assert_eq!((layout.planes.len(), layout.planes[0].frames), (usize::from(PLANES), FRAMES));
    assert_eq!(client.frame_ptr(1).expect("a frame").addr() - layout.tier0.addr(), layout.planes[0].stride as usize);
    assert!(client.frame_ptr(FRAMES).is_none());
}

#[test]
fn the_daemon_learns_the_numa_node_that_the_engine_names() {
    for numa_node in [Some(3), Some(4)] {
        let fake = Fake::start();
        let client = Client::attach(Options { numa_node, ..options(fake.socket.clone()) }).expect("attach");
        assert_eq!(fake.hello().numa_node, numa_node);
        drop(client);
    }
}

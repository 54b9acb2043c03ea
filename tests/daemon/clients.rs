//! The daemon through the client library: whole sessions, and the effects of the daemon's death on a client.

use crate::raw::Raw;
use crate::roles::{Actor, say};
use crate::{BOUND, daemon, sessions, until_status};
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_client::{Channel, Client, Lane, Options, Outcome, Pass, Request, SeqId, SpaceSpec, StepSeq};
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::Plane;
use kvtide_wire::status::Status;
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Planes of the model. Pages have two sizes; 1000 is not a multiple of a sector.
pub const PAGE_BYTES: [u32; 3] = [4096, 1000, 4096];
pub const PAGE_TOKENS: u64 = 16;

pub fn attach(socket: &Path, depth: u16) -> (Client, Channel, Lane) {
    let space = SpaceSpec::new("clients", [5; 32], PAGE_TOKENS as u32, PAGE_BYTES.map(Plane::full).to_vec());
    let options = Options { depth, seqs_max: 16, ..Options::new(socket.into(), space, vec![64, 32]) };
    let client = Client::attach(options).unwrap();
    let (channel, lane) = (client.channel(0).unwrap(), client.lane(0).unwrap());
    (client, channel, lane)
}

/// Return the byte that fills a page.
pub fn content(index: u32, plane: u16) -> u8 {
    (index as u8).wrapping_mul(31).wrapping_add(plane as u8).wrapping_add(7)
}

/// Create a sequence of `blocks` whole blocks, written and committed.
pub fn write(channel: &mut Channel, lane: &mut Lane, blocks: u32) -> SeqId {
    let seq = channel.create_seq().unwrap();
    let tokens = u64::from(blocks) * PAGE_TOKENS;
    channel.reserve(seq, tokens, BOUND).unwrap();
    lane.begin(&[StepSeq { seq, tokens }]).unwrap();
    for plane in 0..PAGE_BYTES.len() as u16 {
        assert!(matches!(lane.boundary(plane).unwrap(), Pass::All));
        for index in 0..blocks {
            lane.page_mut(seq, index, plane).unwrap().fill(content(index, plane));
        }
    }
    lane.end().unwrap();
    channel.commit(seq, tokens).unwrap();
    seq
}

/// Read every page in one step and compare it with the written bytes.
pub fn read(lane: &mut Lane, seq: SeqId, blocks: u32) {
    lane.begin(&[StepSeq { seq, tokens: u64::from(blocks) * PAGE_TOKENS }]).unwrap();
    for plane in 0..PAGE_BYTES.len() as u16 {
        let mut seen = 0;
        loop {
            let pass = lane.boundary(plane).unwrap();
            let indices: Vec<u32> = match pass {
                Pass::All => (0..blocks).collect(),
                Pass::Part { .. } => lane.ready().iter().map(|ready| ready.index).collect(),
            };
            for index in indices {
                let page = lane.page(seq, index, plane).unwrap();
                assert_eq!(page.len(), PAGE_BYTES[usize::from(plane)] as usize);
                assert!(page.iter().all(|byte| *byte == content(index, plane)), "block {index}, plane {plane}");
                seen += 1;
            }
            if matches!(pass, Pass::All | Pass::Part { last: true, .. }) {
                break;
            }
        }
        assert_eq!(seen, blocks);
    }
    lane.end().unwrap();
}

fn hashes(blocks: u32) -> Vec<u128> {
    (1..=u128::from(blocks)).map(|n| n << 64 | n).collect()
}

/// Role: an engine that publishes eight blocks, has them in host memory, and runs until it is killed.
pub fn publisher(socket: &Path) {
    let (_client, mut channel, mut lane) = attach(socket, 16);
    let seq = write(&mut channel, &mut lane, 8);
    channel.publish(seq, 0, 0, &hashes(8), Level::Published, BOUND).unwrap();
    channel.park(seq, Duration::ZERO).unwrap();
    say("published");
    crate::roles::hold();
}

/// Stop all threads of the daemon, as a debugger does; return when they have stopped.
fn stop(daemon: &PrivateDaemon) {
    daemon.signal(Signal::STOP).unwrap();
    let pid = Pid::from_raw(daemon.pid() as i32);
    let (_, status) = waitpid(pid, WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped());
}

#[test]
fn what_a_killed_engine_published_is_read_by_the_next() {
    let mut daemon = daemon("");
    let (_client, mut channel, mut lane) = attach(daemon.socket(), 16);
    let mut publisher = Actor::start("publisher", daemon.socket());
    assert_eq!(publisher.hear(), "published");
    let stored = |status: &Value| {
        let pages = &status["spaces"][0]["core"]["tier0_to_host"]["pages"];
        pages.as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum::<u64>()
    };
    let pages = 8 * PAGE_BYTES.len() as u64;
    until_status(&mut daemon, "every page is in host memory", |status| stored(status) == pages);
    publisher.kill();
    until_status(&mut daemon, "the dead engine's session is removed", |status| sessions(status) == (1, 0));
    let seq = channel.create_seq().unwrap();
    assert_eq!(channel.attach_prefix(seq, &hashes(9), BOUND).unwrap(), 8);
    read(&mut lane, seq, 8);
}

#[test]
fn a_full_ring_is_again_and_loses_nothing() {
    let daemon = daemon("");
    let (_client, mut channel, _lane) = attach(daemon.socket(), 4);
    // A stopped daemon does not answer, so the ring fills.
    stop(&daemon);
    let mut tickets = Vec::new();
    let refused = loop {
        match channel.submit(Request::Nop, BOUND, 0) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error.status(),
        }
        assert!(tickets.len() <= 4, "more requests in flight than the channel is deep");
    };
    assert_eq!(refused, Status::Again);
    assert!(tickets.len() >= 3, "the client reserves one entry for a cancel: {}", tickets.len());
    daemon.signal(Signal::CONT).unwrap();
    for ticket in tickets {
        assert_eq!(channel.wait(ticket, BOUND).unwrap().result.unwrap(), Outcome::Done);
    }
    channel.nop(BOUND).unwrap();
}

#[test]
fn a_killed_daemon_releases_who_waits_and_leaves_tier_0_readable() {
    let mut first = daemon("");
    let (client, mut channel, mut lane) = attach(first.socket(), 16);
    let seq = write(&mut channel, &mut lane, 4);
    channel.nop(BOUND).unwrap();
    stop(&first);
    let waiter = std::thread::spawn(move || {
        let status = channel.nop(Duration::from_secs(3600)).unwrap_err().status();
        (channel, status)
    });
    first.signal(Signal::KILL).unwrap();
    first.wait(BOUND).unwrap();
    let (mut channel, status) = waiter.join().unwrap();
    assert_eq!(status, Status::Daemon);
    assert_eq!(channel.nop(BOUND).unwrap_err().status(), Status::Daemon);
    assert_eq!(channel.reserve(seq, 100 * PAGE_TOKENS, BOUND).unwrap_err().status(), Status::Daemon);
    assert!(!client.alive());
    read(&mut lane, seq, 4);
    drop((channel, lane));
    let second = daemon(&format!("[daemon]\nsocket = \"{}\"\n", first.socket().display()));
    let (_new, mut channel, mut lane) = attach(first.socket(), 16);
    let fresh = write(&mut channel, &mut lane, 4);
    read(&mut lane, fresh, 4);
    // The old client keeps its tier 0: the sequence is read, extended and parked as before.
    let client = client.reattach(first.socket()).unwrap();
    let (mut channel, mut lane) = (client.channel(0).unwrap(), client.lane(0).unwrap());
    read(&mut lane, seq, 4);
    channel.reserve(seq, 6 * PAGE_TOKENS, BOUND).unwrap();
    channel.park(seq, Duration::ZERO).unwrap();
    channel.resume(seq, BOUND).unwrap();
    read(&mut lane, seq, 4);
    drop(second);
}

#[test]
fn a_daemon_that_does_not_answer_costs_no_more_than_the_timeout() {
    let daemon = daemon("");
    let (_client, mut channel, _lane) = attach(daemon.socket(), 16);
    stop(&daemon);
    assert_eq!(channel.nop(Duration::from_millis(20)).unwrap_err().status(), Status::TimedOut);
    daemon.signal(Signal::CONT).unwrap();
    channel.nop(BOUND).unwrap();
}

#[test]
fn an_engine_that_comes_and_goes_leaves_no_slot_behind() {
    let mut daemon = daemon("[limits]\nsessions_max = 3\n");
    let _other = Raw::attach(daemon.socket());
    for _ in 0..20 {
        let (client, mut channel, mut lane) = attach(daemon.socket(), 16);
        let seq = write(&mut channel, &mut lane, 4);
        channel.park(seq, Duration::ZERO).unwrap();
        client.detach();
        drop((client, channel, lane));
        until_status(&mut daemon, "the session is removed", |status| sessions(status) == (1, 0));
    }
}

//! Announced requests: if an engine's scheduler reports its waiting requests, their prefixes are in tier 0 when they run.

use crate::clients::{PAGE_BYTES, attach, read, write};
use crate::{BOUND, daemon, until_status};
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_client::{Channel, Lane, SeqId};
use kvtide_tiering::Reason;
use kvtide_wire::entry::Level;
use serde_json::Value;
use std::time::Duration;

/// Blocks of a prefix; tier 0 holds 32.
const BLOCKS: u32 = 20;
const PAGES: u64 = BLOCKS as u64 * PAGE_BYTES.len() as u64;

fn hashes(prefix: u128) -> Vec<u128> {
    (1..=u128::from(BLOCKS)).map(|block| prefix << 64 | block).collect()
}

fn publish(channel: &mut Channel, lane: &mut Lane, prefix: u128) {
    let seq = write(channel, lane, BLOCKS);
    channel.publish(seq, 0, 0, &hashes(prefix), Level::Published, BOUND).unwrap();
    channel.drop_seq(seq).unwrap();
}

fn map(channel: &mut Channel, prefix: u128) -> SeqId {
    let seq = channel.create_seq().unwrap();
    assert_eq!(channel.attach_prefix(seq, &hashes(prefix), BOUND).unwrap(), BLOCKS as usize);
    seq
}

fn count(status: &Value, name: &str) -> u64 {
    status["spaces"][0]["core"][name].as_u64().unwrap()
}

/// Return faults, pages loaded by steps or faults, and outcomes of the pages loaded for queued sequences.
fn figures(daemon: &mut PrivateDaemon) -> (u64, u64, [u64; 4]) {
    let status = daemon.status().unwrap();
    let outcomes = ["used", "late", "missed", "wasted"].map(|what| count(&status, &format!("scheduled_{what}")));
    (count(&status, "faults"), waited_for(&status), outcomes)
}

fn waited_for(status: &Value) -> u64 {
    let pages = &status["spaces"][0]["core"]["host_to_tier0"]["pages"];
    [Reason::Demand, Reason::Step].iter().map(|&reason| pages[reason as usize].as_u64().unwrap()).sum()
}

#[test]
fn a_queued_request_finds_its_prefix_in_tier_0() {
    let mut daemon = daemon("");
    let (_client, mut channel, mut lane) = attach(daemon.socket(), 16);
    (1..=3).for_each(|prefix| publish(&mut channel, &mut lane, prefix));
    // Tier 0 holds the last prefix of twenty blocks, and twelve blocks of the previous one.
    let queued = map(&mut channel, 1);
    channel.park(queued, Duration::from_secs(3600)).unwrap();
    let (faults, waited, outcomes) = figures(&mut daemon);
    assert_eq!((faults, outcomes), (0, [0; 4]));
    // The running request is almost done, so the queued one is due much sooner.
    channel.park(queued, Duration::from_millis(500)).unwrap();
    until_status(&mut daemon, "the whole prefix is loaded", |status| {
        count(status, "scheduled_loads") == PAGES
            && status["spaces"][0]["core"]["host_to_tier0"]["pages"][Reason::Scheduled as usize] == PAGES
    });
    channel.resume(queued, BOUND).unwrap();
    read(&mut lane, queued, BLOCKS);
    // The core learns of the end of a step asynchronously.
    until_status(&mut daemon, "its pages are counted", |status| count(status, "scheduled_used") == PAGES);
    assert_eq!(figures(&mut daemon), (faults, waited, [PAGES, 0, 0, 0]), "its step waited for no load");
    channel.drop_seq(queued).unwrap();
    // A request without announcement waits for all of its pages.
    let surprise = map(&mut channel, 2);
    read(&mut lane, surprise, BLOCKS);
    until_status(&mut daemon, "its pages are loaded for the step", |status| {
        waited_for(status) - waited >= 8 * PAGE_BYTES.len() as u64
    });
}

//! `[eviction]` as an operator writes it: what a running daemon makes of it.

use crate::clients::{attach, write};
use crate::{BOUND, daemon, until_status};
use kvtide_client::{Channel, Lane};
use kvtide_wire::entry::Level;
use serde_json::Value;

/// Blocks of a prefix.
const BLOCKS: u32 = 20;

fn hashes(prefix: u128) -> Vec<u128> {
    (1..=u128::from(BLOCKS)).map(|block| prefix << 64 | block).collect()
}

/// A sequence that is published and goes.
fn publish(channel: &mut Channel, lane: &mut Lane, prefix: u128) {
    let seq = write(channel, lane, BLOCKS);
    channel.publish(seq, 0, 0, &hashes(prefix), Level::Published, BOUND).unwrap();
    channel.seq_drop(seq).unwrap();
}

/// How much of a prefix is found; to look is to use.
fn found(channel: &mut Channel, prefix: u128) -> usize {
    let seq = channel.seq_create().unwrap();
    let found = channel.map(seq, &hashes(prefix), BOUND).unwrap();
    channel.seq_drop(seq).unwrap();
    found
}

fn count(status: &Value, name: &str) -> u64 {
    status["spaces"][0]["core"][name].as_u64().unwrap()
}

#[test]
fn an_idle_daemon_gives_up_what_is_older_than_its_ttl() {
    let mut daemon = daemon("[eviction]\nttl_s = 1\n");
    let (_client, mut channel, mut lane) = attach(daemon.socket(), 16);
    publish(&mut channel, &mut lane, 1);
    // Nobody asks it for anything but how it stands, which its core does not hear of.
    until_status(&mut daemon, "gave up what is too old", |status| count(status, "expired") == u64::from(BLOCKS));
    assert_eq!(found(&mut channel, 1), 0);
}

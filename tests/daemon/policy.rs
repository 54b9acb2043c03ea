//! Effects of the configuration table `[eviction]` in a running daemon.

use crate::clients::{attach, write};
use crate::{BOUND, daemon, until_status};
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_client::{Channel, Client, Lane};
use kvtide_wire::entry::{Advice, Level};
use serde_json::Value;

/// Blocks of a prefix: 9 KiB each. Tier 0 holds 32.
const BLOCKS: u32 = 20;

/// A domain with host memory for 46 blocks, less than one slab of the daemon.
fn config(eviction: &str) -> String {
    let uid = rustix::process::geteuid().as_raw();
    format!("[[domains]]\nname = \"own\"\nuids = [{uid}]\nhost = \"416KiB\"\n[eviction]\n{eviction}\n")
}

fn hashes(prefix: u128) -> Vec<u128> {
    (1..=u128::from(BLOCKS)).map(|block| prefix << 64 | block).collect()
}

struct Engine {
    channel: Channel,
    lane: Lane,
    _client: Client,
}

impl Engine {
    fn attach(daemon: &PrivateDaemon) -> Engine {
        let (_client, channel, lane) = attach(daemon.socket(), 16);
        Engine { channel, lane, _client }
    }

    /// Publish a sequence, with a priority if given, and drop it.
    fn publish(&mut self, prefix: u128, priority: Option<u8>) {
        let seq = write(&mut self.channel, &mut self.lane, BLOCKS);
        if let Some(priority) = priority {
            self.channel.advise(seq, 0, BLOCKS, Advice::Priority(priority)).unwrap();
        }
        self.channel.publish(seq, 0, 0, &hashes(prefix), Level::Published, BOUND).unwrap();
        self.channel.drop_seq(seq).unwrap();
    }

    /// Publish new blocks that exceed the capacity of all tiers.
    fn publish_more(&mut self, name: u128) {
        (0..5).for_each(|prefix| self.publish(name << 32 | prefix, None));
    }

    /// Return how many blocks of a prefix are found. This counts as a use.
    fn found(&mut self, prefix: u128) -> u32 {
        let seq = self.channel.create_seq().unwrap();
        let found = self.channel.attach_prefix(seq, &hashes(prefix), BOUND).unwrap();
        self.channel.drop_seq(seq).unwrap();
        found as u32
    }
}

fn count(status: &Value, name: &str) -> u64 {
    status["spaces"][0]["core"][name].as_u64().unwrap()
}

#[test]
fn an_idle_daemon_gives_up_what_is_older_than_its_ttl() {
    let mut daemon = daemon("[eviction]\nttl_s = 1\n");
    let mut engine = Engine::attach(&daemon);
    engine.publish(1, None);
    // Only the status is requested, and that does not reach the core.
    until_status(&mut daemon, "all blocks have expired", |status| count(status, "expired") == u64::from(BLOCKS));
    assert_eq!(engine.found(1), 0);
}

#[test]
fn what_is_there_gets_a_ttl_by_a_reload() {
    let mut daemon = daemon("[eviction]\nttl_s = 0\n");
    let mut engine = Engine::attach(&daemon);
    engine.publish(1, None);
    daemon.reload("[eviction]\nttl_s = 1\n").unwrap();
    until_status(&mut daemon, "all blocks have expired", |status| count(status, "expired") == u64::from(BLOCKS));
    assert_eq!(engine.found(1), 0);
}

#[test]
fn high_priority_outlives_what_comes_later_within_a_quota() {
    for (priority, left) in [(Some(200), BLOCKS), (None, 0)] {
        let daemon = daemon(&config("policy = \"lru\"\nhigh_share_percent = 90"));
        let mut engine = Engine::attach(&daemon);
        engine.publish(1, priority);
        engine.publish_more(2);
        assert_eq!(engine.found(1), left, "at priority {priority:?}: {}", daemon.log());
        assert_eq!(engine.found(2 << 32 | 4), BLOCKS, "the last prefix is cached");
    }
}

#[test]
fn a_reload_takes_its_share_from_high_priority() {
    let mut daemon = daemon(&config("policy = \"lru\"\nhigh_share_percent = 90"));
    let mut engine = Engine::attach(&daemon);
    engine.publish(1, Some(200));
    daemon.reload(&config("policy = \"lru\"\nhigh_share_percent = 0")).unwrap();
    engine.publish_more(2);
    assert_eq!(engine.found(1), 0, "{}", daemon.log());
}

/// A prefix that was used twice survives a scan, although it is the least recently used.
#[test]
fn a_reload_changes_the_order_of_what_is_there() {
    for (policy, left) in [("s3-fifo", BLOCKS), ("lru", 0)] {
        let mut daemon = daemon(&config("policy = \"s3-fifo\""));
        let mut engine = Engine::attach(&daemon);
        engine.publish(1, None);
        assert_eq!(engine.found(1), BLOCKS);
        engine.publish_more(2);
        assert_eq!(engine.found(1), BLOCKS, "it survives one scan");
        daemon.reload(&config(&format!("policy = {policy:?}"))).unwrap();
        engine.publish_more(3);
        assert_eq!(engine.found(1), left, "{policy}: {}", daemon.log());
    }
}

//! Stored blocks survive a stop or a kill of the daemon, and blocks found afterwards have the right bytes.

use crate::nvme::{BLOCKS, Dir, Engine, PAGE_BYTES, PAGE_TOKENS, nvme_options, total};
use crate::{BOUND, options, until_status};
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_client::{Client, Options as ClientOptions, SeqId, SpaceSpec};
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::Plane;
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;

/// Regions of the tests' disks.
const REGIONS: u64 = 8;
const REGION: u64 = 1 << 20;
/// Fingerprints of models.
const MODEL: u8 = 1;
const OTHER: u8 = 2;

/// A chain of published blocks: the sequence with their bytes, and their hashes.
struct Chain {
    bytes_of: SeqId,
    hashes: Vec<u128>,
}

/// Write chains of [`BLOCKS`] blocks and publish them at a level.
fn publish(engine: &mut Engine, chains: std::ops::Range<u32>, level: Level) -> Vec<Chain> {
    let publish = |chain| {
        let seq = engine.write(BLOCKS).unwrap();
        let hashes: Vec<u128> = (1..=u128::from(BLOCKS)).map(|block| u128::from(chain + 1) << 64 | block).collect();
        let reached = engine.channel.publish(seq, 0, 0, &hashes, level, BOUND).unwrap();
        assert_eq!(reached, level, "chain {chain}");
        engine.channel.drop_seq(seq).unwrap();
        Chain { bytes_of: seq, hashes }
    };
    chains.map(publish).collect()
}

/// Map every chain and read the blocks found. Return their number for each chain; panic on wrong bytes.
fn read(engine: &mut Engine, chains: &[Chain]) -> Vec<u32> {
    let read = |chain: &Chain| {
        let seq = engine.channel.create_seq().unwrap();
        let found = engine.channel.attach_prefix(seq, &chain.hashes, BOUND).unwrap() as u32;
        engine.mapped.insert(seq, chain.bytes_of);
        if found > 0 {
            engine.step(&[(seq, found)], found).unwrap();
        }
        engine.channel.drop_seq(seq).unwrap();
        engine.mapped.remove(&seq);
        found
    };
    chains.iter().map(read).collect()
}

fn all(chains: &[Chain]) -> Vec<u32> {
    chains.iter().map(|chain| chain.hashes.len() as u32).collect()
}

fn one_disk(dir: &Dir) -> Options {
    nvme_options(dir, REGIONS * REGION, "", "")
}

fn kill(mut daemon: PrivateDaemon) {
    daemon.signal(Signal::KILL).unwrap();
    daemon.wait(BOUND).unwrap();
}

fn stop(mut daemon: PrivateDaemon) {
    assert!(daemon.stop().unwrap().success(), "{}", daemon.log());
    assert!(!daemon.log().contains("ERROR"), "{}", daemon.log());
}

/// Return the number of regions with unclaimed data of an earlier run, over all disks.
fn unclaimed(status: &Value) -> u64 {
    status["host"]["disks"].as_array().unwrap().iter().map(|disk| total(disk, "/unclaimed")).sum()
}

#[test]
fn what_was_stored_is_found_after_a_stop_and_after_a_kill() {
    for (end, level) in [(stop as fn(_), Level::Stored), (kill, Level::Stored), (kill, Level::Durable)] {
        let dir = Dir::new();
        let daemon = PrivateDaemon::start(&one_disk(&dir)).unwrap();
        let mut engine = Engine::attach(daemon.socket(), MODEL);
        let mut chains = publish(&mut engine, 0..6, level);
        end(daemon);
        drop(engine);
        // Twice, with more blocks stored in between: blocks found after one start are also found after the next.
        for round in 1..=2 {
            let daemon = PrivateDaemon::start(&one_disk(&dir)).unwrap();
            let mut engine = Engine::attach(daemon.socket(), MODEL);
            assert_eq!(read(&mut engine, &chains), all(&chains), "{level:?}, start {round}: {}", daemon.log());
            chains.extend(publish(&mut engine, 6 * round..6 * round + 2, level));
            assert_eq!(read(&mut engine, &chains), all(&chains));
            end(daemon);
        }
    }
}

#[test]
fn another_model_finds_nothing_and_takes_the_room_of_the_oldest() {
    let dir = Dir::new();
    let daemon = PrivateDaemon::start(&one_disk(&dir)).unwrap();
    let mut engine = Engine::attach(daemon.socket(), MODEL);
    let chains = publish(&mut engine, 0..16, Level::Stored);
    stop(daemon);
    drop(engine);
    // The model's slabs are kept until their space is needed.
    let mut daemon = PrivateDaemon::start(&one_disk(&dir)).unwrap();
    let held =
        unclaimed(&until_status(&mut daemon, "the unclaimed regions are reported", |status| unclaimed(status) > 0));
    let mut other = Engine::attach(daemon.socket(), OTHER);
    assert_eq!(read(&mut other, &chains), vec![0; chains.len()]);
    let mine = publish(&mut other, 0..2, Level::Stored);
    assert_eq!(unclaimed(&daemon.status().unwrap()), held, "the disk had enough free space: {}", daemon.log());
    // More than the free space of the disk: unclaimed blocks are evicted, and the other model's blocks stay.
    let more = publish(&mut other, 2..20, Level::Stored);
    assert!(unclaimed(&daemon.status().unwrap()) < held, "{}", daemon.log());
    assert_eq!(read(&mut other, &mine), all(&mine));
    assert_eq!(read(&mut other, &more), all(&more));
    kill(daemon);
    drop(other);
    // The first model finds its remaining blocks.
    let daemon = PrivateDaemon::start(&one_disk(&dir)).unwrap();
    let mut engine = Engine::attach(daemon.socket(), MODEL);
    let found = read(&mut engine, &chains);
    assert!(found.iter().sum::<u32>() < all(&chains).iter().sum(), "none of its blocks were evicted");
    stop(daemon);
}

#[test]
fn another_geometry_is_another_space_and_the_old_one_is_found_when_it_comes_back() {
    let dir = Dir::new();
    let daemon = PrivateDaemon::start(&one_disk(&dir)).unwrap();
    let mut engine = Engine::attach(daemon.socket(), MODEL);
    let chains = publish(&mut engine, 0..4, Level::Stored);
    kill(daemon);
    drop(engine);
    let daemon = PrivateDaemon::start(&one_disk(&dir)).unwrap();
    let mut planes: Vec<u32> = PAGE_BYTES.to_vec();
    planes.reverse();
    planes[0] += 512;
    let (_client, mut channel) = attach(daemon.socket(), &planes);
    let seq = channel.create_seq().unwrap();
    assert_eq!(channel.attach_prefix(seq, &chains[0].hashes, BOUND).unwrap(), 0);
    let mut engine = Engine::attach(daemon.socket(), MODEL);
    assert_eq!(read(&mut engine, &chains), all(&chains), "{}", daemon.log());
    stop(daemon);
}

/// Attach an engine of the model with other page sizes.
fn attach(socket: &Path, page_bytes: &[u32]) -> (Client, kvtide_client::Channel) {
    let plane = |page_bytes: &u32| Plane::full(*page_bytes);
    let space = SpaceSpec::new("changed", [MODEL; 32], PAGE_TOKENS as u32, page_bytes.iter().map(plane).collect());
    let classes = page_bytes.iter().collect::<std::collections::BTreeSet<_>>().len();
    let client = Client::attach(ClientOptions::new(socket.into(), space, vec![16; classes])).unwrap();
    let channel = client.channel(0).unwrap();
    (client, channel)
}

fn two_disks(dir: &Dir) -> Options {
    let disk = |name: &str| {
        let path = dir.path().join(name).join("disk");
        format!(
            "[[tiers.nvme.disks]]\ndir = \"{}\"\ncapacity = {}\nreserve_free = 0\n",
            path.display(),
            REGIONS * REGION
        )
    };
    let config = format!("[tiers.nvme]\nslab = {REGION}\n{}{}", disk("one"), disk("two"));
    Options { host_bytes: Some(512 << 10), slab_bytes: Some(64 << 10), ..options(&config) }
}

#[test]
fn a_disk_that_is_gone_costs_its_own_chains_and_no_more() {
    let dir = Dir::new();
    ["one", "two"].iter().for_each(|mount| std::fs::create_dir(dir.path().join(mount)).unwrap());
    let daemon = PrivateDaemon::start(&two_disks(&dir)).unwrap();
    let mut engine = Engine::attach(daemon.socket(), MODEL);
    let chains = publish(&mut engine, 0..16, Level::Durable);
    stop(daemon);
    drop(engine);
    std::fs::rename(dir.path().join("two"), dir.path().join("away")).unwrap();
    let daemon = PrivateDaemon::start(&two_disks(&dir)).unwrap();
    let mut engine = Engine::attach(daemon.socket(), MODEL);
    let found = read(&mut engine, &chains);
    let sum: u32 = found.iter().sum();
    assert!(sum > 0 && sum < all(&chains).iter().sum(), "{found:?}: {}", daemon.log());
    assert!(daemon.log().contains("ERROR"), "{}", daemon.log());
    let more = publish(&mut engine, 16..18, Level::Stored);
    assert_eq!(read(&mut engine, &more), all(&more), "the other disk serves");
    kill(daemon);
    drop(engine);
    // The disk returns with its blocks.
    std::fs::rename(dir.path().join("away"), dir.path().join("two")).unwrap();
    let daemon = PrivateDaemon::start(&two_disks(&dir)).unwrap();
    let mut engine = Engine::attach(daemon.socket(), MODEL);
    let again = read(&mut engine, &chains);
    assert!(again.iter().sum::<u32>() > sum, "{again:?} after {found:?}: {}", daemon.log());
    stop(daemon);
}

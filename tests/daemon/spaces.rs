//! Several models on one daemon: each gets memory, even if earlier models have filled the tiers.

use crate::blocks::{Memory, attach_model, hashes, load, store};
use crate::nvme::{Dir, nvme_options};
use crate::raw::Raw;
use crate::roles::park_four_blocks;
use crate::{BOUND, daemon, options, until_status};
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_client::{Channel, Client};
use kvtide_wire::entry::Level;
use serde_json::Value;

/// 4 MiB of host memory in 16 slabs. A block takes 20 KiB, so about 200 blocks fit.
const HOST_BYTES: u64 = 4 << 20;
const FILLS: u32 = 400;
/// Three eighths of host memory.
const SECOND: u32 = 72;

fn host_alone() -> PrivateDaemon {
    PrivateDaemon::start(&Options { host_bytes: Some(HOST_BYTES), slab_bytes: Some(256 << 10), ..options("") }).unwrap()
}

fn over_nvme(dir: &Dir, config: &str) -> PrivateDaemon {
    let all = "admission = \"all\"";
    let options = nvme_options(dir, 256 << 20, all, config);
    PrivateDaemon::start(&Options { host_bytes: Some(HOST_BYTES), slab_bytes: Some(256 << 10), ..options }).unwrap()
}

fn attach(daemon: &PrivateDaemon, model: u8) -> (Client, Channel, Memory) {
    attach_model(daemon.socket(), None, (1, 0), model, 64)
}

/// Store prefixes of eight blocks; those that do not fit are not cached.
fn fill(engine: &mut (Client, Channel, Memory), blocks: u32) {
    let (_, channel, memory) = engine;
    for prefix in 0..u128::from(blocks / 8) {
        (0..8).for_each(|i| memory.write(i, prefix + 1, i));
        let own: Vec<u32> = (0..8).collect();
        // A rejected prefix is simply not found later.
        let _ = channel.store((0, 0), &hashes(prefix + 1, 8), &own, Level::Published, BOUND);
    }
}

fn found(engine: &mut (Client, Channel, Memory), blocks: u32) -> u32 {
    (0..u128::from(blocks / 8)).map(|prefix| engine.1.lookup(&hashes(prefix + 1, 8), BOUND).unwrap().blocks).sum()
}

fn granted(status: &Value) -> u64 {
    status["host"]["granted_bytes"].as_u64().unwrap()
}

/// The first model fills host memory, and stays attached or detaches. The second stores three eighths of host memory and finds
/// its blocks.
fn second_model(mut daemon: PrivateDaemon, stays: bool) {
    let mut first = attach(&daemon, 1);
    fill(&mut first, FILLS);
    until_status(&mut daemon, "host memory is filled", |status| granted(status) > HOST_BYTES * 9 / 10);
    let first = stays.then_some(first);
    let mut second = attach(&daemon, 2);
    fill(&mut second, SECOND);
    let found = found(&mut second, SECOND);
    assert!(found >= SECOND * 9 / 10, "{found} of {SECOND} blocks found\n{}", daemon.log());
    load(&mut second.1, &mut second.2, 1, 8);
    drop(first);
}

#[test]
fn a_second_model_finds_room_where_the_first_has_filled_host_memory_and_left() {
    second_model(host_alone(), false);
}

#[test]
fn a_second_model_finds_room_where_the_first_has_filled_host_memory_and_is_idle() {
    second_model(host_alone(), true);
}

#[test]
fn the_same_over_nvme_and_nothing_that_the_first_has_there_is_lost() {
    for stays in [false, true] {
        let dir = Dir::new();
        second_model(over_nvme(&dir, ""), stays);
    }
    let dir = Dir::new();
    let mut daemon = over_nvme(&dir, "");
    let mut first = attach(&daemon, 1);
    for prefix in 0..u128::from(FILLS / 8) {
        store(&mut first.1, &mut first.2, prefix + 1, 8, Level::Stored);
    }
    drop(first);
    let mut second = attach(&daemon, 2);
    fill(&mut second, FILLS);
    until_status(&mut daemon, "the second model has all host memory", |status| {
        let of = |space: &Value| space["host_bytes"].as_u64().or(space["slab_bytes"].as_u64()).unwrap_or(0);
        status["spaces"].as_array().is_some_and(|spaces| spaces.len() == 2 && spaces.iter().any(|space| of(space) == 0))
            || granted(status) <= HOST_BYTES
    });
    drop(second);
    let mut first = attach(&daemon, 1);
    assert_eq!(found(&mut first, FILLS), FILLS);
    load(&mut first.1, &mut first.2, 1, 8);
}

#[test]
fn an_engine_that_pages_gets_memory_that_others_have_cached() {
    let mut daemon = host_alone();
    let mut first = attach(&daemon, 1);
    fill(&mut first, FILLS);
    until_status(&mut daemon, "host memory is filled", |status| granted(status) > HOST_BYTES * 9 / 10);
    let mut raw = Raw::attach(daemon.socket());
    park_four_blocks(&mut raw, 0);
}

#[test]
fn thirty_models_one_after_another_are_served_and_the_first_finds_what_it_stored() {
    let dir = Dir::new();
    let daemon = over_nvme(&dir, "");
    for model in 1..=30 {
        let mut engine = attach(&daemon, model);
        store(&mut engine.1, &mut engine.2, 1, 8, Level::Stored);
        load(&mut engine.1, &mut engine.2, 1, 8);
    }
    for model in [1, 30, 2] {
        let mut engine = attach(&daemon, model);
        assert_eq!(found(&mut engine, 8), 8, "model {model}\n{}", daemon.log());
        load(&mut engine.1, &mut engine.2, 1, 8);
    }
}

#[test]
fn a_model_too_many_is_refused_while_all_the_others_have_sessions() {
    let daemon = daemon("[limits]\nspaces_max = 2\n");
    let _engines = [1, 2].map(|model| attach(&daemon, model));
    let planes = vec![kvtide_wire::geometry::Plane::full(4096)];
    let space = kvtide_client::SpaceSpec::new("third", [3; 32], 16, planes);
    let options = kvtide_client::Options::new(daemon.socket().into(), space, vec![0]);
    let refused = Client::attach(options).err().unwrap().to_string();
    assert!(refused.contains("2 spaces have sessions") && refused.contains("limits.spaces_max"), "{refused}");
}

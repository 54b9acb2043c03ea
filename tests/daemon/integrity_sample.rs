//! The integrity sample end to end: a bit flip in host memory between a store and a load is detected, counted and never served.

use crate::nvme::{Dir, Engine, NVME_BYTES, nvme_options, total};
use crate::roles::{Actor, say};
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_wire::status::Status;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Blocks of a sequence. Tier 0 holds 32, so that a complete read loads pages from host memory.
const BLOCKS: u32 = 48;

/// Flip a bit in every 1000 bytes (the smallest page) of each slab of host memory that this process maps. Return how many.
fn flip_host_memory() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let memory = File::options().read(true).write(true).open("/proc/self/mem").unwrap();
    let mut flipped = 0;
    for line in maps.lines().filter(|line| line.contains("memfd:kvtide-host")) {
        let (range, _) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
        for at in (start + 777..end).step_by(1000) {
            let mut byte = [0];
            memory.read_exact_at(&mut byte, at).unwrap();
            memory.write_all_at(&[byte[0] ^ 16], at).unwrap();
            flipped += 1;
        }
    }
    flipped
}

fn sample(status: &Value, what: &str) -> u64 {
    status["spaces"].as_array().unwrap().iter().map(|space| total(space, &format!("/sample/{what}"))).sum()
}

/// Read a sequence in one step. Return the error if a page cannot be read; panic on wrong bytes.
fn read(engine: &mut Engine, seq: u32) -> Result<(), Status> {
    engine.step(&[(seq, BLOCKS)], BLOCKS)
}

/// Role: an engine that corrupts its host memory. It runs in its own process, because it flips bits in all slabs mapped there.
pub fn flipper(socket: &Path) {
    let mut engine = Engine::attach(socket, 1);
    let seq = engine.write(BLOCKS).unwrap();
    assert_eq!(read(&mut engine, seq), Ok(()));
    assert!(flip_host_memory() > 0, "this process maps no slab");
    let refused = read(&mut engine, seq).expect_err("pages were read although all pages in host memory are corrupt");
    say(&format!("{refused:?}"));
    // The daemon and the engine continue; pages written from now on are correct.
    engine.channel.drop_seq(seq).unwrap();
    let fresh = engine.write(BLOCKS).unwrap();
    say(&format!("{:?}", read(&mut engine, fresh)));
    crate::roles::hold();
}

#[test]
fn a_bit_that_flips_in_host_memory_is_caught_and_never_served() {
    let dir = Dir::new();
    // The whole sequence fits in host memory, so that no page passes through NVMe between a store and its load.
    let mut options = nvme_options(&dir, NVME_BYTES, "", "[integrity_sample]\none_in = 1\n");
    options.host_bytes = Some(8 << 20);
    let mut daemon = PrivateDaemon::start(&options).unwrap();
    let mut engine = Actor::start("flipper", daemon.socket());
    let refused = engine.hear();
    assert!(["Lost", "Io", "Corrupt"].contains(&&*refused), "{refused}");
    assert_eq!(engine.hear(), "Ok(())");
    let status = daemon.status().unwrap();
    assert!(sample(&status, "checked") > sample(&status, "failed") && sample(&status, "failed") > 0, "{status:#}");
    assert!(daemon.log().contains("page differs from the stored page"), "{}", daemon.log());
}

#[test]
fn a_sample_that_is_off_checks_nothing() {
    let dir = Dir::new();
    let mut daemon =
        PrivateDaemon::start(&nvme_options(&dir, NVME_BYTES, "", "[integrity_sample]\none_in = 0\n")).unwrap();
    let mut engine = Engine::attach(daemon.socket(), 1);
    let seq = engine.write(BLOCKS).unwrap();
    assert_eq!(read(&mut engine, seq), Ok(()));
    assert_eq!(sample(&daemon.status().unwrap(), "checked"), 0);
}

//! Three tiers, the third in a file. Reads return the written bytes or an error, also after kills and damage to the file.

use crate::roles::{Actor, say};
use crate::{BOUND, options, sessions, until_status};
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_client::{Channel, Client, Lane, Options as ClientOptions, Pass, SeqId, SpaceSpec, StepSeq};
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::Plane;
use kvtide_wire::status::Status;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Planes of the model. Pages of 1000 bytes share sectors with their neighbours.
pub const PAGE_BYTES: [u32; 3] = [4096, 1000, 4096];
pub const PAGE_TOKENS: u64 = 16;
/// Tier 0: 32 blocks.
const FRAMES: [u32; 2] = [64, 32];
/// Sequences, and blocks of each: twelve times the capacity of tier 0, five times that of tier 0 and host memory.
const SEQS: u32 = 16;
pub const BLOCKS: u32 = 24;
/// Blocks written in one step.
const CHUNK: u32 = 8;
const HOST_BYTES: u64 = 512 << 10;
pub const NVME_BYTES: u64 = 8 << 20;

/// A directory of one test, removed on drop.
pub struct Dir(tempfile::TempDir);

impl Dir {
    pub fn new() -> Dir {
        Dir(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Return the path of the store's file.
    pub fn store(&self) -> PathBuf {
        self.path().join("disk/kvtide.store")
    }
}

pub fn nvme_options(dir: &Dir, bytes: u64, tier: &str, rest: &str) -> Options {
    let disk = dir.path().join("disk");
    let disk = format!("[[tiers.nvme.disks]]\ndir = \"{}\"\ncapacity = {bytes}\nreserve_free = 0\n", disk.display());
    let config = format!("{rest}\n[tiers.nvme]\nslab = {}\n{tier}\n{disk}", 1 << 20);
    Options { host_bytes: Some(HOST_BYTES), slab_bytes: Some(64 << 10), ..options(&config) }
}

fn nvme_daemon(dir: &Dir) -> PrivateDaemon {
    PrivateDaemon::start(&nvme_options(dir, NVME_BYTES, "", "")).unwrap()
}

/// An engine that verifies every byte that it reads.
pub struct Engine {
    lane: Lane,
    pub channel: Channel,
    client: Client,
    /// Sequences that contain pages written by another sequence.
    pub mapped: BTreeMap<SeqId, SeqId>,
}

impl Engine {
    pub fn attach(socket: &Path, fingerprint: u8) -> Engine {
        let space = SpaceSpec::new(
            format!("nvme-{fingerprint}"),
            [fingerprint; 32],
            PAGE_TOKENS as u32,
            PAGE_BYTES.map(Plane::full).to_vec(),
        );
        let options =
            ClientOptions { seqs_max: 64, timeout: BOUND, ..ClientOptions::new(socket.into(), space, FRAMES.to_vec()) };
        let client = Client::attach(options).unwrap();
        let (channel, lane) = (client.channel(0).unwrap(), client.lane(0).unwrap());
        Engine { lane, channel, client, mapped: BTreeMap::new() }
    }

    /// Create a sequence of `blocks` whole blocks, written chunk by chunk. Each step also reads and verifies the earlier blocks.
    pub fn write(&mut self, blocks: u32) -> Result<SeqId, Status> {
        let seq = self.channel.create_seq().map_err(|e| e.status())?;
        for begin in (0..blocks).step_by(CHUNK as usize) {
            let end = (begin + CHUNK).min(blocks);
            let tokens = u64::from(end) * PAGE_TOKENS;
            self.channel.reserve(seq, tokens, BOUND).map_err(|e| e.status())?;
            self.step(&[(seq, end)], begin)?;
            self.channel.commit(seq, tokens).map_err(|e| e.status())?;
        }
        Ok(seq)
    }

    /// Run one step over sequences with their numbers of blocks. Write the blocks from `begin` on, and verify all others.
    pub fn step(&mut self, seqs: &[(SeqId, u32)], begin: u32) -> Result<(), Status> {
        let members: Vec<_> =
            seqs.iter().map(|&(seq, blocks)| StepSeq { seq, tokens: u64::from(blocks) * PAGE_TOKENS }).collect();
        let done = self.lane.begin(&members).map_err(|e| e.status()).and_then(|()| self.planes(seqs, begin));
        let ended = self.lane.end().map_err(|e| e.status());
        done.and(ended)
    }

    fn planes(&mut self, seqs: &[(SeqId, u32)], begin: u32) -> Result<(), Status> {
        for plane in 0..PAGE_BYTES.len() as u16 {
            for &(seq, blocks) in seqs {
                for index in begin..blocks {
                    self.lane.page_mut(seq, index, plane).unwrap().copy_from_slice(&content(seq, index, plane));
                }
            }
            let mut seen = 0;
            loop {
                let pass = self.lane.boundary(plane).map_err(|e| e.status())?;
                let ready: Vec<(SeqId, u32)> = match pass {
                    Pass::All => seqs.iter().flat_map(|&(seq, n)| (0..n).map(move |index| (seq, index))).collect(),
                    Pass::Part { .. } => {
                        let seq = |position: u32| seqs[position as usize].0;
                        self.lane.ready().iter().map(|ready| (seq(ready.position), ready.index)).collect()
                    }
                };
                for (seq, index) in ready {
                    let page = self.lane.page(seq, index, plane).unwrap();
                    let seq = self.mapped.get(&seq).copied().unwrap_or(seq);
                    assert!(
                        *page == *content(seq, index, plane),
                        "WRONG BYTES: sequence {seq:?}, block {index}, plane {plane}"
                    );
                    seen += 1;
                }
                if matches!(pass, Pass::All | Pass::Part { last: true, .. }) {
                    break;
                }
            }
            assert_eq!(seen, seqs.iter().map(|(_, blocks)| blocks).sum::<u32>());
        }
        Ok(())
    }

    /// Write [`SEQS`] sequences of [`BLOCKS`] blocks.
    pub fn write_all(&mut self) -> Vec<(SeqId, u32)> {
        (0..SEQS).map(|_| (self.write(BLOCKS).unwrap(), BLOCKS)).collect()
    }

    /// Detach with nothing in flight: memory that a running process may still read stays in quarantine until it exits.
    fn leave(mut self, daemon: &mut PrivateDaemon, seqs: &[(SeqId, u32)]) {
        for (seq, _) in seqs {
            self.channel.drop_seq(*seq).unwrap();
        }
        let blocks = |status: &Value| {
            status["spaces"].as_array().unwrap().iter().map(|s| total(s, "/occupancy/blocks")).sum::<u64>()
        };
        until_status(daemon, "every block is free", |status| blocks(status) == 0);
        drop(self);
        until_status(daemon, "all sessions, memory and regions are free", all_back);
    }

    /// Read each sequence in a step of its own, then all of them in one step.
    pub fn read_all(&mut self, seqs: &[(SeqId, u32)]) -> Result<(), Status> {
        seqs.iter().try_for_each(|seq| self.step(&[*seq], seq.1))?;
        self.step(seqs, BLOCKS)
    }
}

/// Return the bytes of a page; they differ between any two pages.
fn content(seq: SeqId, index: u32, plane: u16) -> Vec<u8> {
    let seed = (u64::from(index) << 32 | u64::from(plane) << 16).wrapping_add(u64::from(seq) << 48);
    let word = |n: u64| (seed + n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17).to_le_bytes();
    let bytes = PAGE_BYTES[usize::from(plane)] as usize;
    (0..bytes.div_ceil(8) as u64).flat_map(word).take(bytes).collect()
}

fn sum(status: &Value, path: &str) -> u64 {
    status["spaces"].as_array().unwrap().iter().map(|space| total(&space["core"], path)).sum()
}

/// Return the number at a path, or the sum of the list there.
pub fn total(value: &Value, path: &str) -> u64 {
    match value.pointer(path).unwrap_or_else(|| panic!("no {path} in {value:#}")) {
        Value::Array(list) => list.iter().map(|n| n.as_u64().unwrap()).sum(),
        number => number.as_u64().unwrap(),
    }
}

/// Return whether no engine has a session, host memory or a region.
fn all_back(status: &Value) -> bool {
    sessions(status) == (0, 0)
        && total(status, "/host/granted_bytes") == 0
        && total(status, "/host/disks/0/granted") == 0
        && total(status, "/host/disks/0/lost") == 0
}

/// Role: write and read over three tiers until killed, with one line of output per round.
pub fn scanner(socket: &Path) {
    let mut engine = Engine::attach(socket, 9);
    let seqs = engine.write_all();
    say("written");
    for round in 0u64.. {
        if let Err(status) = engine.read_all(&seqs) {
            say(&format!("{status:?}"));
            return crate::roles::hold();
        }
        say(&round.to_string());
    }
}

#[test]
fn what_was_written_is_read_back_however_bytes_move() {
    for tier in ["", "io = \"threads\"", "direct = \"off\"", "registered = \"off\"\ndepth = 2"] {
        let dir = Dir::new();
        let mut daemon = PrivateDaemon::start(&nvme_options(&dir, NVME_BYTES, tier, "")).unwrap();
        let mut engine = Engine::attach(daemon.socket(), 1);
        let seqs = engine.write_all();
        for _ in 0..2 {
            assert_eq!(engine.read_all(&seqs), Ok(()), "{tier}: {}", daemon.log());
        }
        let status = daemon.status().unwrap();
        let pages = u64::from(SEQS * BLOCKS) * PAGE_BYTES.len() as u64;
        let (read, written) = (sum(&status, "/nvme_to_host/pages"), sum(&status, "/host_to_nvme/pages"));
        assert!(written >= pages / 2 && read >= pages, "{tier}: {read} pages read, {written} written: {status:#}");
        for failures in ["checksum_failed", "io_failed", "pages_lost"] {
            assert_eq!(sum(&status, &format!("/{failures}")), 0, "{tier}: {failures}");
        }
        engine.leave(&mut daemon, &seqs);
        assert!(daemon.stop().unwrap().success(), "{tier}: {}", daemon.log());
    }
}

#[test]
fn engines_killed_under_load_leave_nothing_and_disturb_nobody() {
    let dir = Dir::new();
    let mut daemon = PrivateDaemon::start(&nvme_options(&dir, 4 * NVME_BYTES, "", "")).unwrap();
    let mut other = Engine::attach(daemon.socket(), 1);
    let seqs = vec![(other.write(BLOCKS).unwrap(), BLOCKS)];
    for moment in ["written", "0", "1"] {
        let mut engine = Actor::start("scanner", daemon.socket());
        // The scheduler decides where after the line the kill takes effect.
        while engine.hear() != moment {}
        engine.kill();
        assert_eq!(other.read_all(&seqs), Ok(()));
    }
    until_status(&mut daemon, "the dead engines' sessions are removed", |status| sessions(status) == (1, 0));
    assert_eq!(other.read_all(&seqs), Ok(()));
    other.leave(&mut daemon, &seqs);
}

#[test]
fn a_daemon_killed_under_load_is_an_error_and_the_next_one_takes_its_file() {
    let dir = Dir::new();
    for moment in ["written", "0"] {
        let mut daemon = nvme_daemon(&dir);
        let mut engine = Actor::start("scanner", daemon.socket());
        while engine.hear() != moment {}
        daemon.signal(Signal::KILL).unwrap();
        daemon.wait(BOUND).unwrap();
        let mut said = engine.hear();
        while said.parse::<u64>().is_ok() {
            said = engine.hear();
        }
        assert_eq!(said, format!("{:?}", Status::Daemon));
    }
    let mut daemon = nvme_daemon(&dir);
    let mut engine = Engine::attach(daemon.socket(), 9);
    let seqs = engine.write_all();
    assert_eq!(engine.read_all(&seqs), Ok(()));
    assert!(daemon.stop().unwrap().success(), "{}", daemon.log());
}

#[test]
fn a_daemon_told_to_end_under_load_ends_in_order() {
    let dir = Dir::new();
    let mut daemon = nvme_daemon(&dir);
    let mut engine = Actor::start("scanner", daemon.socket());
    while engine.hear() != "0" {}
    assert!(daemon.stop().unwrap().success(), "{}", daemon.log());
    let log = daemon.log();
    assert!(log.contains("shutdown complete") && !log.contains("ERROR"), "{log}");
    let mut said = engine.hear();
    while said.parse::<u64>().is_ok() {
        said = engine.hear();
    }
    assert_eq!(said, format!("{:?}", Status::Daemon));
}

/// Read each sequence in a step of its own. Return how many could not be read; their error must be `Lost` or the device's.
fn unreadable(engine: &mut Engine, seqs: &[(SeqId, u32)]) -> usize {
    let failed = seqs.iter().filter_map(|seq| engine.step(&[*seq], seq.1).err());
    failed.inspect(|status| assert!(matches!(status, Status::Lost | Status::Io), "{status:?}")).count()
}

#[test]
fn flipped_bits_are_errors_or_misses_and_never_wrong_bytes() {
    let dir = Dir::new();
    let mut daemon = nvme_daemon(&dir);
    let mut engine = Engine::attach(daemon.socket(), 1);
    let seqs = engine.write_all();
    let hashes: Vec<u128> = (1..=u128::from(BLOCKS)).map(|n| n << 64 | n).collect();
    engine.channel.publish(seqs[0].0, 0, 0, &hashes, Level::Published, BOUND).unwrap();
    let file = File::options().read(true).write(true).open(dir.store()).unwrap();
    let mut byte = [0];
    for at in (123..file.metadata().unwrap().len()).step_by(4096) {
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    }
    // EIO means that the daemon has written around the page cache meanwhile. Dirty pages of the cache are written nevertheless.
    let _ = file.sync_all();
    let failed = unreadable(&mut engine, &seqs);
    assert!(failed > 0, "every sequence was read although its bytes were changed");
    let status = daemon.status().unwrap();
    assert!(sum(&status, "/checksum_failed") > 0, "{status:#}");
    // An unreadable block is not found any more, or its read is an error.
    let seq = engine.channel.create_seq().unwrap();
    if let Ok(found) = engine.channel.attach_prefix(seq, &hashes, BOUND)
        && found > 0
    {
        engine.mapped.insert(seq, seqs[0].0);
        unreadable(&mut engine, &[(seq, found as u32)]);
    }
    engine.mapped.clear();
    engine.channel.drop_seq(seq).unwrap();
    // Blocks written from now on can be read.
    for (seq, _) in seqs {
        engine.channel.drop_seq(seq).unwrap();
    }
    let fresh = engine.write(BLOCKS).unwrap();
    assert_eq!(engine.step(&[(fresh, BLOCKS)], BLOCKS), Ok(()));
}

#[test]
fn a_file_that_becomes_shorter_is_an_error_and_never_wrong_bytes() {
    let dir = Dir::new();
    let daemon = nvme_daemon(&dir);
    let mut engine = Engine::attach(daemon.socket(), 1);
    let seqs = engine.write_all();
    File::options().write(true).open(dir.store()).unwrap().set_len(1 << 20).unwrap();
    assert!(unreadable(&mut engine, &seqs) > 0, "every sequence was read although the file is truncated");
    drop(engine);
    let mut engine = Engine::attach(daemon.socket(), 2);
    let fresh = engine.write(CHUNK).unwrap();
    assert_eq!(engine.step(&[(fresh, CHUNK)], CHUNK), Ok(()));
}

#[test]
fn a_full_disk_is_said_so_and_what_was_written_stays() {
    let dir = Dir::new();
    let daemon = PrivateDaemon::start(&nvme_options(&dir, 2 << 20, "", "")).unwrap();
    let mut engine = Engine::attach(daemon.socket(), 1);
    let mut seqs = Vec::new();
    let refused = loop {
        match engine.write(BLOCKS) {
            Ok(seq) => seqs.push((seq, BLOCKS)),
            Err(status) => break status,
        }
        assert!(seqs.len() < SEQS as usize, "more was written than the tiers can hold");
    };
    assert_eq!(refused, Status::NoSpace);
    assert!(seqs.len() >= 6, "only {} sequences fit: {}", seqs.len(), daemon.log());
    for _ in 0..2 {
        assert_eq!(engine.read_all(&seqs), Ok(()), "{}", daemon.log());
    }
    // Freed space can be used again.
    let (first, _) = seqs.remove(0);
    engine.channel.drop_seq(first).unwrap();
    assert!(engine.client.alive());
    let seq = engine.write(BLOCKS / 2).unwrap();
    assert_eq!(engine.step(&[(seq, BLOCKS / 2)], BLOCKS), Ok(()));
}

#[test]
fn two_daemons_do_not_share_a_directory() {
    let dir = Dir::new();
    let _daemon = nvme_daemon(&dir);
    let error = PrivateDaemon::start(&nvme_options(&dir, NVME_BYTES, "", "")).unwrap_err().to_string();
    assert!(error.contains("disk/kvtide.store"), "{error}");
}

#[test]
fn a_block_larger_than_a_slab_is_refused_with_the_key() {
    let dir = Dir::new();
    let daemon = nvme_daemon(&dir);
    let space = SpaceSpec::new("large", [1; 32], 16, vec![Plane::full(64 << 10); 17]);
    let refused = Client::attach(ClientOptions::new(daemon.socket().into(), space, vec![64])).err();
    assert!(refused.is_some_and(|error| error.to_string().contains("tiers.nvme.slab")));
}

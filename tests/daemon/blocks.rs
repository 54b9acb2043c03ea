//! Block API: engines with their own KV memory store blocks, look up prefixes, lease and load them.

use crate::nvme::{Dir, nvme_options};
use crate::roles::{Actor, hold, say};
use crate::{BOUND, daemon, options, sessions, until, until_status};
use kvtide_bench::private_daemon::{Options as DaemonOptions, PrivateDaemon};
use kvtide_client::{Channel, Client, Error, Options, Piece, Request, SpaceSpec};
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::Plane;
use kvtide_wire::status::Status;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Separate K and V of two layers, and one other state: pages of two sizes.
pub const PAGE_BYTES: [u32; 3] = [8192, 8192, 1000];
/// Default maximum duration of a lease.
const LONG: Duration = Duration::from_secs(600);

/// An engine's own memory: each plane in one or two tensors. Blocks are the first dimension of one and the last of the other.
pub struct Memory {
    tensors: Vec<Vec<u8>>,
    blocks: u32,
}

impl Memory {
    fn new(blocks: u32) -> Memory {
        let bytes = [4096, 4096, 4096, 4096, 1000 + 24];
        Memory { tensors: bytes.map(|bytes| vec![0u8; bytes * blocks as usize]).to_vec(), blocks }
    }

    fn pieces(&mut self) -> Vec<Piece> {
        let of = [(0, 4096, 4096), (0, 4096, 4096), (1, 4096, 4096), (1, 4096, 4096), (2, 1024, 1000)];
        let piece = |(tensor, (plane, stride, bytes)): (&mut Vec<u8>, (u16, usize, usize))| Piece {
            plane,
            member: 0,
            base: tensor.as_mut_ptr().expose_provenance(),
            stride,
            bytes,
        };
        self.tensors.iter_mut().zip(of).map(piece).collect()
    }

    /// Fill a block with bytes that depend on the prefix and on the block's index in it.
    pub fn write(&mut self, block: u32, prefix: u128, index: u32) {
        self.each(block, |at, byte| *byte = content(prefix, index, at));
    }

    fn holds(&mut self, block: u32, prefix: u128, index: u32) -> bool {
        let mut same = true;
        self.each(block, |at, byte| same &= *byte == content(prefix, index, at));
        same
    }

    pub fn each(&mut self, block: u32, mut look: impl FnMut(usize, &mut u8)) {
        let mut at = 0;
        for (tensor, (stride, bytes)) in
            self.tensors.iter_mut().zip([(4096, 4096); 4].into_iter().chain([(1024, 1000)]))
        {
            for byte in &mut tensor[block as usize * stride..][..bytes] {
                look(at, byte);
                at += 1;
            }
        }
    }
}

fn content(prefix: u128, index: u32, at: usize) -> u8 {
    (prefix as usize * 97 + index as usize * 31 + at * 7 + at / 251) as u8
}

pub fn hashes(prefix: u128, blocks: u32) -> Vec<u128> {
    (1..=u128::from(blocks)).map(|block| prefix << 64 | block).collect()
}

/// Attach a session without tier 0; return it with its memory.
pub fn attach(socket: &Path, shards: u16, shard: u16, blocks: u32) -> (Client, Channel, Memory) {
    attach_as(socket, None, (shards, shard), blocks)
}

/// Do the same with a tenant's token.
pub fn attach_as(
    socket: &Path,
    token_file: Option<PathBuf>,
    shards: (u16, u16),
    blocks: u32,
) -> (Client, Channel, Memory) {
    attach_model(socket, token_file, shards, 9, blocks)
}

/// Do the same for a certain model.
pub fn attach_model(
    socket: &Path,
    token_file: Option<PathBuf>,
    (shards, shard): (u16, u16),
    model: u8,
    blocks: u32,
) -> (Client, Channel, Memory) {
    let plane = |page_bytes| Plane::full(page_bytes);
    let planes = PAGE_BYTES.map(plane).to_vec();
    let space = SpaceSpec { name: "blocks".into(), fingerprint: [model; 32], page_tokens: 16, planes, shards, shard };
    let identity = format!(r#"{{"model":"{model}","dtype":"bf16"}}"#);
    let options = Options { token_file, identity, ..Options::new(socket.into(), space, vec![0, 0]) };
    let client = Client::attach(options).unwrap();
    let channel = client.channel(0).unwrap();
    let mut memory = Memory::new(blocks);
    let pieces = memory.pieces();
    // SAFETY: every caller drops the memory after the client.
    unsafe { client.set_blocks(blocks, &pieces) }.unwrap();
    (client, channel, memory)
}

/// Store a prefix from the memory's first blocks on; all of it must become findable.
pub fn store(channel: &mut Channel, memory: &mut Memory, prefix: u128, blocks: u32, level: Level) {
    let hashes = hashes(prefix, blocks);
    (0..blocks).for_each(|i| memory.write(i % memory.blocks, prefix, i));
    for first in (0..blocks).step_by(32) {
        let count = 32.min(blocks - first);
        let own: Vec<u32> = (first..first + count).map(|i| i % memory.blocks).collect();
        let parent = if first == 0 { 0 } else { hashes[first as usize - 1] };
        let range = first as usize..(first + count) as usize;
        let copied = channel.store((first, parent), &hashes[range], &own, level, BOUND).unwrap();
        assert_eq!((copied.status, copied.failed.len(), copied.level), (Status::Ok, 0, level));
    }
}

/// Load a prefix into the memory's blocks in reverse order and compare every byte.
pub fn load(channel: &mut Channel, memory: &mut Memory, prefix: u128, blocks: u32) {
    let lease = channel.lease(prefix << 64 | u128::from(blocks), blocks, LONG, BOUND).unwrap();
    assert_eq!(lease.in_host + lease.on_nvme + lease.elsewhere, blocks);
    let own: Vec<u32> = (0..blocks).rev().collect();
    let copied = channel.load(lease.seq, 0, &own, BOUND).unwrap();
    assert_eq!((copied.status, copied.failed.len()), (Status::Ok, 0));
    for (index, block) in (0..blocks).zip(own) {
        assert!(memory.holds(block, prefix, index), "block {index} of prefix {prefix}");
    }
    channel.drop_seq(lease.seq).unwrap();
}

#[test]
fn what_one_engine_stored_another_loads_bit_by_bit() {
    let daemon = daemon("");
    let (_writer, mut store_channel, mut memory) = attach(daemon.socket(), 1, 0, 64);
    store(&mut store_channel, &mut memory, 1, 48, Level::Published);
    let (_reader, mut channel, mut other) = attach(daemon.socket(), 1, 0, 64);
    let mut chain = hashes(1, 48);
    chain.extend(hashes(2, 5));
    assert_eq!(channel.lookup(&chain, BOUND).unwrap().blocks, 48);
    assert_eq!(channel.lookup(&hashes(3, 1000), BOUND).unwrap().blocks, 0);
    assert_eq!(channel.lookup(&[], BOUND).unwrap().blocks, 0);
    load(&mut channel, &mut other, 1, 48);
    // Load part of the prefix: other blocks keep their bytes.
    let lease = channel.lease(chain[47], 48, LONG, BOUND).unwrap();
    (0..64).for_each(|block| other.write(block, 7, 0));
    channel.load(lease.seq, 40, &[3, 1], BOUND).unwrap();
    assert!(other.holds(3, 1, 40) && other.holds(1, 1, 41) && other.holds(2, 7, 0));
}

#[test]
fn every_length_of_a_prefix_is_found() {
    let daemon = daemon("");
    let (_client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 8);
    let all = 200;
    store(&mut channel, &mut memory, 1, all, Level::Published);
    for blocks in 0..=all {
        for more in [0, 1, 30, 1000, 5000] {
            let mut chain = hashes(1, blocks);
            chain.extend(hashes(9, more));
            assert_eq!(channel.lookup(&chain, BOUND).unwrap().blocks, blocks, "{blocks} of {}", chain.len());
        }
    }
}

#[test]
fn what_does_not_fit_together_is_refused_in_words() {
    let daemon = daemon("");
    let (client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 8);
    let mut pieces = memory.pieces();
    pieces.pop();
    // SAFETY: the call is rejected, so the memory is not used.
    let refused = unsafe { client.set_blocks(8, &pieces) }.unwrap_err();
    assert!(refused.to_string().contains("plane 2: 0 pieces of 0 bytes, a page has 1000"), "{refused}");
    let status = |result: Result<kvtide_client::Copied, Error>| result.unwrap_err().status();
    let none = Level::Published;
    assert_eq!(status(channel.store((0, 0), &[1, 2], &[0], none, BOUND)), Status::Invalid);
    assert_eq!(status(channel.store((1, 0), &[1], &[0], none, BOUND)), Status::Invalid);
    let many = Request::Store { first: 0, parent: 0, hashes: &[1; 103], blocks: &[0; 103], level: none };
    assert_eq!(channel.submit(many, BOUND, 0).unwrap_err().status(), Status::Limit);
    assert_eq!(status(channel.load(99, 0, &[0], BOUND)), Status::NotFound);
    assert_eq!(channel.lease(77, 1, LONG, BOUND).unwrap_err().status(), Status::NotFound);
    // A store with an unknown parent, and a store from a block that the engine does not have: neither becomes findable.
    let copied = channel.store((3, 55), &[56], &[0], none, BOUND).unwrap();
    assert_eq!((copied.status, copied.failed), (Status::NotAdmitted, vec![0]));
    assert_eq!(status(channel.store((0, 0), &[61, 62], &[0, 8], none, BOUND)), Status::Range);
    assert_eq!(channel.lookup(&[61, 62], BOUND).unwrap().blocks, 0);
    assert_eq!(channel.store((0, 0), &[61], &[0], none, BOUND).unwrap().status, Status::Ok);
    let lease = channel.lease(61, 1, LONG, BOUND).unwrap();
    assert_eq!(channel.lease(61, 2, LONG, BOUND).unwrap_err().status(), Status::Invalid, "a prefix of one block");
    assert_eq!(status(channel.load(lease.seq, 0, &[8], BOUND)), Status::Range, "a block that the engine does not have");
    assert_eq!(status(channel.load(lease.seq, 0, &[0, 1], BOUND)), Status::Range);
    // A lease allows only loads.
    let refused = channel.truncate(lease.seq, 0, BOUND).unwrap_err();
    assert_eq!(refused.status(), Status::State, "{refused}");
    assert_eq!(status(channel.load(lease.seq, 0, &[0; 513], BOUND)), Status::Range);
    // Without blocks nothing is sent, and the session continues.
    // SAFETY: there are no pieces.
    unsafe { client.set_blocks(0, &[]) }.unwrap();
    assert_eq!(status(channel.load(lease.seq, 0, &[0], BOUND)), Status::State);
    let pieces = memory.pieces();
    // SAFETY: as in `attach`.
    unsafe { client.set_blocks(8, &pieces) }.unwrap();
    assert_eq!(channel.load(lease.seq, 0, &[0], BOUND).unwrap().status, Status::Ok);
}

#[test]
fn a_block_is_found_when_every_shard_has_stored_its_copy() {
    let daemon = daemon("");
    let (_a, mut first, mut memory_a) = attach(daemon.socket(), 2, 0, 16);
    let (_b, mut second, mut memory_b) = attach(daemon.socket(), 2, 1, 16);
    store(&mut first, &mut memory_a, 1, 6, Level::Published);
    assert_eq!(first.lookup(&hashes(1, 6), BOUND).unwrap().blocks, 0, "the other shard has not stored it");
    store(&mut second, &mut memory_b, 1, 4, Level::Published);
    for channel in [&mut first, &mut second] {
        assert_eq!(channel.lookup(&hashes(1, 6), BOUND).unwrap().blocks, 4);
    }
    load(&mut first, &mut memory_a, 1, 4);
    load(&mut second, &mut memory_b, 1, 4);
    assert_eq!(first.lease(1 << 64 | 6, 6, LONG, BOUND).unwrap_err().status(), Status::NotFound);
}

#[test]
fn stored_blocks_come_back_after_a_kill_and_from_a_host_tier_too_small() {
    let dir = Dir::new();
    let disk = || DaemonOptions { host_bytes: Some(2 << 20), ..nvme_options(&dir, 16 << 20, "", "") };
    let mut daemon = PrivateDaemon::start(&disk()).unwrap();
    {
        let (_client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 64);
        // 64 blocks take 1.1 MiB; four prefixes exceed twice the host memory.
        (1..=4).for_each(|prefix| store(&mut channel, &mut memory, prefix, 64, Level::Stored));
        (1..=4).for_each(|prefix| load(&mut channel, &mut memory, prefix, 64));
        let lease = channel.lease(1 << 64 | 64, 64, LONG, BOUND).unwrap();
        assert!(lease.on_nvme > 0, "{lease:?}");
    }
    kill(&mut daemon);
    let daemon = PrivateDaemon::start(&disk()).unwrap();
    let (_client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 64);
    for prefix in 1..=4 {
        assert_eq!(channel.lookup(&hashes(prefix, 64), BOUND).unwrap().blocks, 64);
        load(&mut channel, &mut memory, prefix, 64);
    }
}

fn kill(daemon: &mut PrivateDaemon) {
    daemon.signal(Signal::KILL).unwrap();
    daemon.wait(BOUND).unwrap();
}

#[test]
fn a_lease_ends_at_its_time() {
    let mut daemon = daemon("");
    let (_client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 8);
    store(&mut channel, &mut memory, 1, 2, Level::Published);
    let lease = channel.lease(1 << 64 | 2, 2, Duration::from_millis(50), BOUND).unwrap();
    until_status(&mut daemon, "the lease has expired", |status| status["spaces"][0]["core"]["leases_expired"] == 1);
    let late = channel.load(lease.seq, 0, &[0, 1], BOUND).unwrap_err();
    assert_eq!(late.status(), Status::NotFound);
    load(&mut channel, &mut memory, 1, 2);
}

#[test]
fn a_lease_has_its_number_until_it_is_dropped_and_the_bound_says_so() {
    let mut daemon = daemon("");
    let (_client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 8);
    store(&mut channel, &mut memory, 1, 1, Level::Published);
    let mut lease = || channel.lease(1 << 64 | 1, 1, Duration::from_millis(1), BOUND);
    let leases: Vec<_> = (0..1024).map(|_| lease().unwrap().seq).collect();
    until_status(&mut daemon, "all leases have expired", |status| {
        status["spaces"][0]["core"]["leases_expired"] == 1024
    });
    let full = lease().unwrap_err();
    assert_eq!(full.status(), Status::Limit);
    let text = full.to_string();
    assert!(text.contains("all 1024 ids") && text.contains("expired ones too") && text.contains("seqs_max"), "{text}");
    channel.drop_seq(leases[7]).unwrap();
    assert_eq!(channel.lease(1 << 64 | 1, 1, LONG, BOUND).unwrap().seq, leases[7]);
}

#[test]
fn a_lease_beyond_the_longest_or_beyond_the_sessions_share_is_refused_in_words() {
    let config = "[limits]\nlease_max_ms = 60000\nlease_percent = 25";
    let daemon = PrivateDaemon::start(&DaemonOptions { host_bytes: Some(4 << 20), ..options(config) }).unwrap();
    let (_client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 64);
    store(&mut channel, &mut memory, 1, 128, Level::Published);
    let mut lease = |count: u32, time| channel.lease(1 << 64 | u128::from(count), count, time, BOUND);
    for time in [Duration::from_millis(60_001), Duration::MAX] {
        let refused = lease(1, time).unwrap_err();
        assert_eq!(refused.status(), Status::Limit);
        let text = refused.to_string();
        assert!(text.contains("limits.lease_max_ms allows 60000 ms"), "{text}");
    }
    let most = Duration::from_secs(60);
    // The only session may lease all blocks.
    let whole = lease(128, most).unwrap();
    let (_other, mut other_channel, _memory) = attach(daemon.socket(), 1, 0, 8);
    let same = other_channel.lease(1 << 64 | 128, 128, most, BOUND).unwrap();
    for (channel, seq) in [(&mut channel, whole.seq), (&mut other_channel, same.seq)] {
        channel.drop_seq(seq).unwrap();
        channel.nop(BOUND).unwrap(); // the daemon has heard of it
    }
    let refused = channel.lease(1 << 64 | 128, 128, most, BOUND).unwrap_err();
    assert_eq!(refused.status(), Status::Limit);
    let text = refused.to_string();
    assert!(text.contains("limits.lease_percent") && text.contains(&(1 << 20).to_string()), "{text}");
    channel.lease(1 << 64 | 32, 32, most, BOUND).unwrap();
}

/// Role: an engine that stores until it is killed.
pub fn storer(socket: &Path) {
    let (_client, mut channel, mut memory) = attach(socket, 1, 0, 64);
    store(&mut channel, &mut memory, 1, 64, Level::Published);
    say("stored");
    for prefix in 2.. {
        store(&mut channel, &mut memory, prefix, 64, Level::Published);
        if prefix == u128::MAX {
            hold();
        }
    }
}

#[test]
fn an_engine_killed_while_it_stores_leaves_nothing_torn_and_gives_its_frames_back() {
    let mut daemon = PrivateDaemon::start(&DaemonOptions { host_bytes: Some(8 << 20), ..options("") }).unwrap();
    let (_client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 64);
    for _ in 0..4 {
        let mut engine = Actor::start("storer", daemon.socket());
        assert_eq!(engine.hear(), "stored");
        engine.kill();
        until_status(&mut daemon, "its frames are free", |status| {
            let space = &status["spaces"][0];
            space["occupancy"]["sessions"] == 1 && space["occupancy"]["host_frames_quarantined"] == 0
        });
        // Every block that it stored and that is found is complete.
        for prefix in 1..200 {
            let found = channel.lookup(&hashes(prefix, 64), BOUND).unwrap().blocks;
            if found > 0 {
                load(&mut channel, &mut memory, prefix, found);
            }
        }
    }
}

/// Sessions attach and detach in a process that goes on running. Copies in flight at a detach must not write into memory that
/// another session has received since.
#[test]
fn a_client_that_leaves_in_mid_copy_leaves_nothing_behind() {
    let mut daemon = daemon("");
    let (_stays, mut staying, mut own) = attach(daemon.socket(), 1, 0, 64);
    for round in 1..=20u128 {
        let (client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 64);
        (0..64).for_each(|block| memory.write(block, round, block));
        let (blocks, hashes): (Vec<u32>, _) = ((0..32).collect(), hashes(round, 32));
        let store = Request::Store { first: 0, parent: 0, hashes: &hashes, blocks: &blocks, level: Level::Published };
        channel.submit(store, BOUND, 0).unwrap();
        if round % 2 == 0 {
            client.detach();
        }
        drop((channel, client));
        store_and_load(&mut staying, &mut own, 100 + round);
    }
    until_status(&mut daemon, "all other sessions are removed", |status| sessions(status) == (1, 0));
}

/// Store a prefix into host frames and load it back, with comparison.
fn store_and_load(channel: &mut Channel, memory: &mut Memory, prefix: u128) {
    store(channel, memory, prefix, 32, Level::Published);
    load(channel, memory, prefix, 32);
}

/// Kernels may still read mapped host frames, so these stay until the process exits.
#[test]
fn a_session_with_window_frames_sends_no_detach_message() {
    let mut daemon = daemon("");
    let space = SpaceSpec::new("windows", [9; 32], 16, vec![Plane::full(8192)]);
    for (mapped_frames, says) in [(0, "ended: detached"), (4, "ended: the socket was closed")] {
        let options = Options { mapped_frames, ..Options::new(daemon.socket().into(), space.clone(), vec![8]) };
        drop(Client::attach(options).unwrap());
        until_status(&mut daemon, "the session is removed", |status| sessions(status) == (0, 0));
        assert_eq!(daemon.log().matches(says).count(), 1, "{mapped_frames} mapped frames: {}", daemon.log());
    }
}

#[test]
fn blocks_are_not_exchanged_while_copies_of_them_are_under_way() {
    let mut daemon = daemon("");
    let (client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 8);
    store(&mut channel, &mut memory, 1, 2, Level::Published);
    let lease = channel.lease(1 << 64 | 2, 2, LONG, BOUND).unwrap();
    let load = |channel: &mut Channel| {
        channel.submit(Request::Load { lease: lease.seq, first: 0, blocks: &[4, 5] }, BOUND, 0).unwrap()
    };
    let pieces = memory.pieces();
    // SAFETY: as in `attach`.
    let exchange = || unsafe { client.set_blocks(8, &pieces) };
    // A load is in flight until its completion is received.
    let ticket = load(&mut channel);
    assert_eq!(exchange().unwrap_err().status(), Status::State);
    channel.wait(ticket, BOUND).unwrap().result.unwrap();
    exchange().unwrap();
    assert!(memory.holds(4, 1, 0) && memory.holds(5, 1, 1));
    // Loads of a dropped channel block the exchange only until they end. Their completions wait for the next owner of the channel.
    let ticket = load(&mut channel);
    drop(channel);
    let deadline = std::time::Instant::now() + BOUND;
    while let Err(error) = exchange() {
        assert_eq!(error.status(), Status::State, "{error}");
        assert!(std::time::Instant::now() < deadline, "{error}");
        std::thread::yield_now();
    }
    let mut channel = client.channel(0).unwrap();
    channel.wait(ticket, BOUND).unwrap().result.unwrap();
    // Loads that ended with the daemon's death do not block the exchange, even if their completions were not received.
    load(&mut channel);
    kill(&mut daemon);
    until(|| "the client did not notice the daemon's death", || !client.alive());
    exchange().unwrap();
}

#[test]
fn a_daemon_that_dies_ends_loads_and_stores_in_words() {
    let mut daemon = daemon("");
    let (client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 64);
    store(&mut channel, &mut memory, 1, 64, Level::Published);
    let lease = channel.lease(1 << 64 | 64, 64, LONG, BOUND).unwrap();
    kill(&mut daemon);
    let all: Vec<u32> = (0..64).collect();
    let failed = channel.load(lease.seq, 0, &all, BOUND).unwrap_err();
    assert_eq!(failed.status(), Status::Daemon, "{failed}");
    channel.settle(BOUND).unwrap();
    let failed = channel.store((0, 0), &[5], &[0], Level::Published, BOUND).unwrap_err();
    assert_eq!(failed.status(), Status::Daemon, "{failed}");
    assert!(!client.alive());
}

/// One engine has leased all blocks in host memory. A store of another engine goes to NVMe or is rejected; it does not wait for a
/// lease.
#[test]
fn a_store_waits_for_no_lease() {
    let dir = Dir::new();
    for (nvme_bytes, level) in [(0, Level::Published), (3 << 20, Level::Stored), (64 << 20, Level::Stored)] {
        let host_bytes = Some(4 << 20);
        let options = match nvme_bytes {
            0 => DaemonOptions { host_bytes, ..options("[limits]\nlease_percent = 100") },
            bytes => DaemonOptions { host_bytes, ..nvme_options(&dir, bytes, "", "[limits]\nlease_percent = 100") },
        };
        let daemon = PrivateDaemon::start(&options).unwrap();
        let (_holder, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 64);
        let (_other, mut other, mut other_memory) = attach(daemon.socket(), 1, 0, 64);
        let all = hashes(1, 192);
        (0..64).for_each(|block| memory.write(block, 1, block));
        let own: Vec<u32> = (0..192).map(|i| i % 64).collect();
        channel.store((0, 0), &all, &own, Level::Published, BOUND).unwrap();
        let found = channel.lookup(&all, BOUND).unwrap().blocks;
        channel.lease(all[found as usize - 1], found, LONG, BOUND).unwrap();
        (0..64).for_each(|block| other_memory.write(block, 2, block));
        let own: Vec<u32> = (0..64).collect();
        for prefix in 2..6 {
            let status = match other.store((0, 0), &hashes(prefix, 64), &own, level, BOUND) {
                Ok(copied) => copied.status,
                Err(error) => error.status(),
            };
            let allowed = [Status::Ok, Status::NoSpace, Status::NotAdmitted].contains(&status);
            assert!(allowed, "NVMe of {nvme_bytes}, prefix {prefix}: {status:?}\n{}", daemon.log());
        }
    }
}

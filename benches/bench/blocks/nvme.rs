//! Loads of 1 MiB blocks that are only on NVMe, through the client into the engine's memory, alternated with reads of the NVMe tier
//! alone in the same directory.

use super::super::nvme::Alone;
use super::{BenchError, Engine, TIMEOUT, median, trying};
use crate::private_daemon::{Nvme, Options as DaemonOptions, PrivateDaemon};
use kvtide_wire::entry::Level;
use kvtide_wire::status::Status;
use std::path::Path;
use std::time::{Duration, Instant};

const BLOCK_BYTES: u32 = 1 << 20;
const ROUNDS: usize = 5;
/// Time of reading the tier alone per round.
const ALONE: Duration = Duration::from_secs(1);
/// Blocks of one store, which waits until they are on the disk.
const STORE: usize = 64;
/// Blocks of one load: the maximum of a call.
const LOAD: usize = 512;
/// Host memory of the daemon: little more than is needed for streaming. Before each round as many other blocks are stored, so that
/// almost none of the loaded blocks is in host memory.
const HOST_BYTES: u64 = 192 << 20;
const OTHERS: u32 = (HOST_BYTES / BLOCK_BYTES as u64) as u32;

/// Rates of each round.
#[derive(Debug, Default)]
pub(super) struct Loads {
    ratios: Vec<f64>,
    ours: Vec<f64>,
    alone: Vec<f64>,
    in_host: Vec<f64>,
}

impl Loads {
    /// Return the median over rounds of the loads divided by reads of the tier alone.
    pub(super) fn ratio(&self) -> f64 {
        median(&self.ratios)
    }

    pub(super) fn note(&self) -> String {
        format!(
            "loads from NVMe {:.2} GB/s, NVMe tier alone {:.2} GB/s; {:.0} blocks of a round came from host memory and count \
            only as time",
            median(&self.ours) / 1e9,
            median(&self.alone) / 1e9,
            median(&self.in_host)
        )
    }
}

pub(super) fn measure(dir: &Path, mib: u32) -> Result<Loads, BenchError> {
    let bytes = u64::from(mib) * u64::from(BLOCK_BYTES);
    let mut alone = Alone::open(dir, BLOCK_BYTES, bytes)?;
    let options = DaemonOptions {
        host_bytes: Some(HOST_BYTES),
        slab_bytes: Some(64 << 20),
        nvme: Some(Nvme { dir: Some(dir.into()), bytes: bytes + (ROUNDS as u64 + 2) * HOST_BYTES + (512 << 20) }),
        ..DaemonOptions::default()
    };
    let mut daemon = PrivateDaemon::start(&options)?;
    let mut engine = Engine::attach(daemon.socket(), BLOCK_BYTES, LOAD as u32)?;
    let hashes: Vec<u128> = (0..u128::from(mib)).map(|i| 7 << 64 | (i + 1)).collect();
    store(&mut engine, &hashes, || alone.check())?;
    let mut loads = Loads::default();
    for round in 0..=ROUNDS {
        let others: Vec<u128> = (0..OTHERS).map(|i| (round as u128 + 8) << 64 | u128::from(i + 1)).collect();
        store(&mut engine, &others, || alone.check())?;
        let beside = alone.read(ALONE)?;
        let before = read_bytes(&mut daemon)?;
        let took = load(&mut engine, &hashes)?;
        let read = (read_bytes(&mut daemon)? - before) as f64;
        let ours = read / took.as_secs_f64();
        // The first round maps memory.
        if round > 0 {
            loads.ratios.push(ours / beside);
            loads.ours.push(ours);
            loads.alone.push(beside);
            loads.in_host.push((bytes as f64 - read) / f64::from(BLOCK_BYTES));
        }
    }
    daemon.stop()?;
    Ok(loads)
}

/// Return the bytes that the daemon has read from NVMe.
fn read_bytes(daemon: &mut PrivateDaemon) -> Result<u64, BenchError> {
    let status = daemon.status()?;
    let spaces = status["spaces"].as_array().into_iter().flatten();
    let of = |space: &serde_json::Value| space["core"].pointer("/nvme_to_host/bytes")?.as_array().cloned();
    let Some(read) = spaces.filter_map(of).next_back() else {
        return Err(BenchError::Odd("the daemon's status lacks the bytes read from NVMe".into()));
    };
    Ok(read.iter().filter_map(serde_json::Value::as_u64).sum())
}

/// Return the content of block `index`.
fn byte(index: usize) -> u8 {
    (index % 251) as u8 + 1
}

fn store(engine: &mut Engine, hashes: &[u128], check: impl Fn() -> Result<(), BenchError>) -> Result<(), BenchError> {
    for (i, part) in hashes.chunks(STORE).enumerate() {
        check()?;
        let first = i * STORE;
        let own: Vec<u32> = (0..part.len() as u32).collect();
        for &block in &own {
            engine.client.with_block(block, 0, |bytes| bytes.fill(byte(first + block as usize)));
        }
        let parent = if first == 0 { 0 } else { hashes[first - 1] };
        engine.store_at((first as u32, parent), part, &own, Level::Stored)?;
    }
    Ok(())
}

/// Load all blocks and return the time.
fn load(engine: &mut Engine, hashes: &[u128]) -> Result<Duration, BenchError> {
    let last = hashes.last().copied().unwrap_or_default();
    let began = Instant::now();
    let lease = trying("lease a prefix", engine.channel.lease(last, hashes.len() as u32, TIMEOUT * 6, TIMEOUT))?;
    let mut took = began.elapsed();
    for first in (0..hashes.len()).step_by(LOAD) {
        let count = LOAD.min(hashes.len() - first);
        let own: Vec<u32> = (0..count as u32).collect();
        for &block in &own {
            engine.client.with_block(block, 0, |bytes| bytes[..8].fill(0));
        }
        let began = Instant::now();
        let copied = trying("load blocks", engine.channel.load(lease.seq, first as u32, &own, TIMEOUT * 6))?;
        took += began.elapsed();
        if copied.status != Status::Ok {
            let why = format!("{} blocks not loaded: {:?}", copied.failed.len(), copied.status);
            return Err(BenchError::Odd(why));
        }
        let right = |&block: &u32| {
            let expected = byte(first + block as usize);
            engine.client.with_block(block, 0, |b| b[0] == expected && b[b.len() - 1] == expected) == Some(true)
        };
        if !own.iter().all(right) {
            return Err(BenchError::Odd("a loaded block differs from the stored block".into()));
        }
    }
    trying("release a lease", engine.channel.drop_seq(lease.seq))?;
    Ok(took)
}

//! Loads of 1 MiB blocks that are only on NVMe, through the client into the engine's memory, alternated with reads of the NVMe tier
//! alone in the same directory.

use super::super::engine::counted;
use super::super::median;
use super::super::nvme::Alone;
use super::{BenchError, BlockEngine, TIMEOUT, block_space};
use crate::private_daemon::{Nvme, Options as DaemonOptions, PrivateDaemon};
use kvtide_wire::entry::Level;
use std::path::Path;
use std::time::{Duration, Instant};

const BLOCK_BYTES: u32 = 1 << 20;
const ROUNDS: usize = 5;
/// Time of reading the tier alone per round.
const ALONE: Duration = Duration::from_secs(1);
/// Blocks of one store, which waits until they are on the disk.
const STORE: u32 = 64;
/// Blocks of one load: the maximum of a call.
const LOAD: usize = 512;
/// Host memory of the daemon: little more than is needed for streaming. Before each round as many other blocks are stored, so that
/// almost none of the loaded blocks is in host memory.
const HOST_BYTES: u64 = 192 << 20;
const OTHERS: u32 = (HOST_BYTES / BLOCK_BYTES as u64) as u32;

/// The daemon's counter of bytes read from NVMe.
const READ: &str = "/nvme_to_host/bytes";

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
    let space = block_space("bench-blocks", 11, BLOCK_BYTES, 1);
    let mut engine = BlockEngine::attach(daemon.socket(), space, LOAD as u32, 6 * TIMEOUT)?;
    let hashes: Vec<u128> = (0..u128::from(mib)).map(|i| 7 << 64 | (i + 1)).collect();
    store(&mut engine, &hashes, || alone.check())?;
    let mut loads = Loads::default();
    for round in 0..=ROUNDS {
        let others: Vec<u128> = (0..OTHERS).map(|i| (round as u128 + 8) << 64 | u128::from(i + 1)).collect();
        store(&mut engine, &others, || alone.check())?;
        let beside = alone.read(ALONE)?;
        let before = counted(&mut daemon, None, READ)?;
        let took = load(&mut engine, &hashes)?;
        let read = (counted(&mut daemon, None, READ)? - before) as f64;
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

/// Return the content of block `index`.
fn byte(index: usize) -> u8 {
    (index % 251) as u8 + 1
}

fn store(
    engine: &mut BlockEngine,
    hashes: &[u128],
    check: impl Fn() -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let own: Vec<u32> = (0..STORE).collect();
    engine.store_chain(hashes, &own, Level::Stored, |client, first| {
        own.iter().for_each(|&block| {
            _ = client.with_block(block, 0, |bytes| bytes.fill(byte(first + block as usize)));
        });
        check()
    })
}

/// Load all blocks and return the time.
fn load(engine: &mut BlockEngine, hashes: &[u128]) -> Result<Duration, BenchError> {
    let began = Instant::now();
    let lease = engine.lease(hashes)?.seq;
    let mut took = began.elapsed();
    for first in (0..hashes.len()).step_by(LOAD) {
        let count = LOAD.min(hashes.len() - first);
        let own: Vec<u32> = (0..count as u32).collect();
        for &block in &own {
            engine.client.with_block(block, 0, |bytes| bytes[..8].fill(0));
        }
        let began = Instant::now();
        engine.load(lease, first as u32, &own)?;
        took += began.elapsed();
        let right = |&block: &u32| {
            let expected = byte(first + block as usize);
            engine.client.with_block(block, 0, |b| b[0] == expected && b[b.len() - 1] == expected) == Some(true)
        };
        if !own.iter().all(right) {
            return Err(BenchError::Odd("a loaded block differs from the stored block".into()));
        }
    }
    engine.release(lease)?;
    Ok(took)
}

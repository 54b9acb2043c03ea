//! Single hits: prefixes of 128 MiB in host memory, alternated with memcpy of the same bytes; and the first prefix loaded from NVMe
//! after a start of the daemon, compared with later ones.
//!
//! An average hides one slow hit in fifty. The longest hit is therefore reported with its parts and the page faults of this thread,
//! next to the longest memcpy, which shows the machine's own share.

use super::{BenchError, Engine, TIMEOUT, median, trying};
use crate::bench::percentile;
use crate::bench::pressure::Folder;
use crate::private_daemon::{Options as DaemonOptions, PrivateDaemon};
use kvtide_wire::entry::Level;
use kvtide_wire::status::Status;
use std::path::Path;
use std::time::{Duration, Instant};

/// Sixteen tokens of 32 KiB.
const BLOCK_BYTES: u32 = 512 << 10;
/// Blocks of a prefix in host memory: 4,096 tokens, 128 MiB.
const PREFIX: u32 = 256;
const PREFIXES: u32 = 3;
/// Number of timed hits.
const ROUNDS: u32 = 60;
/// Blocks of one store.
const STORE: usize = 64;

/// Timed starts of a daemon, prefixes loaded after each, and their blocks: 16 MiB.
const STARTS: u32 = 5;
const COLD_PREFIXES: u32 = 4;
const COLD: u32 = 32;

/// Times of hits in host memory.
#[derive(Debug, Default)]
pub(super) struct Hits {
    hits_ns: Vec<u64>,
    memcpy_ns: Vec<u64>,
    /// Of the longest hit: lookup, lease and load, and page faults.
    worst: ([Duration; 3], u64),
}

impl Hits {
    /// Return the median hit divided by the median copy.
    pub(super) fn ratio(&mut self) -> f64 {
        percentile(&mut self.hits_ns, 50) as f64 / percentile(&mut self.memcpy_ns, 50) as f64
    }

    /// Return the longest hit divided by the median hit.
    pub(super) fn max_ratio(&mut self) -> f64 {
        percentile(&mut self.hits_ns, 100) as f64 / percentile(&mut self.hits_ns, 50) as f64
    }

    /// Return the same for memcpy.
    pub(super) fn memcpy_max_ratio(&mut self) -> f64 {
        percentile(&mut self.memcpy_ns, 100) as f64 / percentile(&mut self.memcpy_ns, 50) as f64
    }

    pub(super) fn note(&mut self) -> String {
        let mut ms = |percent| percentile(&mut self.hits_ns, percent) as f64 / 1e6;
        let (p50, p99, max) = (ms(50), ms(99), ms(100));
        let ([lookup, lease, load], faults) = self.worst;
        format!(
            "hits of 128 MiB in host memory: p50 {p50:.1} ms, p99 {p99:.1} ms, max {max:.1} ms: lookup {lookup:.1?}, \
            lease {lease:.1?}, load {load:.1?}, {faults} page faults"
        )
    }
}

/// Load prefixes from host memory repeatedly.
pub(super) fn in_host() -> Result<Hits, BenchError> {
    let prefix_bytes = u64::from(PREFIX) * u64::from(BLOCK_BYTES);
    let mut daemon = super::daemon(prefix_bytes * u64::from(PREFIXES + 1), PREFIX * PREFIXES)?;
    let mut engine = Engine::attach(daemon.socket(), BLOCK_BYTES, PREFIX)?;
    for prefix in 0..PREFIXES {
        store(&mut engine, prefix, PREFIX, Level::Published)?;
    }
    let (mut near, far) = (vec![1u8; prefix_bytes as usize], vec![2u8; prefix_bytes as usize]);
    let mut hits = Hits::default();
    for round in 0..ROUNDS {
        let faults = page_faults();
        let parts = hit(&mut engine, round % PREFIXES, PREFIX)?;
        let faults = page_faults() - faults;
        let took = super::lookup::nanos(parts.iter().sum());
        if hits.hits_ns.iter().all(|longest| *longest < took) {
            hits.worst = (parts, faults);
        }
        hits.hits_ns.push(took);
        let began = Instant::now();
        near.copy_from_slice(std::hint::black_box(&far));
        std::hint::black_box(&mut near);
        hits.memcpy_ns.push(super::lookup::nanos(began.elapsed()));
    }
    daemon.stop()?;
    Ok(hits)
}

/// Return the first load from NVMe after a start divided by the median of the later ones, and a note with both in milliseconds.
pub(super) fn after_start(dir: &Path) -> Result<(f64, String), BenchError> {
    let disk = Folder::new(dir.join(format!("kvtide-bench-hits-{}", std::process::id())))?;
    let start = || -> Result<PrivateDaemon, BenchError> {
        let config = format!(
            "[tiers.nvme]\nslab = \"64MiB\"\n[[tiers.nvme.disks]]\ndir = {:?}\ncapacity = \"1GiB\"\nreserve_free = 0\n",
            disk.0
        );
        let options = DaemonOptions { host_bytes: Some(512 << 20), config: Some(config), ..DaemonOptions::default() };
        Ok(PrivateDaemon::start(&options)?)
    };
    let mut daemon = start()?;
    let mut engine = Engine::attach(daemon.socket(), BLOCK_BYTES, PREFIX)?;
    for prefix in 0..COLD_PREFIXES {
        store(&mut engine, prefix, COLD, Level::Stored)?;
    }
    let (mut ratios, mut firsts, mut nexts) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..STARTS {
        drop(engine);
        daemon.stop()?;
        daemon = start()?;
        engine = Engine::attach(daemon.socket(), BLOCK_BYTES, PREFIX)?;
        let mut ms = Vec::new();
        for prefix in 0..COLD_PREFIXES {
            let parts = hit(&mut engine, prefix, COLD)?;
            ms.push(parts.iter().sum::<Duration>().as_secs_f64() * 1e3);
        }
        let next = median(&ms[1..]);
        ratios.push(ms[0] / next);
        firsts.push(ms[0]);
        nexts.push(next);
    }
    daemon.stop()?;
    let (first, next) = (median(&firsts), median(&nexts));
    Ok((median(&ratios), format!("hits of 16 MiB on NVMe: first after a start {first:.1} ms, later {next:.1} ms")))
}

/// Return the page faults of this thread so far; 0 if /proc cannot be read.
fn page_faults() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    // proc(5): the name may contain spaces and ends with the last parenthesis; fields 10 and 12 follow.
    let fields: Vec<u64> =
        text.rsplit(')').next().unwrap_or_default().split(' ').filter_map(|f| f.parse().ok()).collect();
    // `parse` drops field 3, the state, so the first number is field 4.
    [6, 8].into_iter().filter_map(|at| fields.get(at)).sum()
}

fn hashes(prefix: u32, count: u32) -> Vec<u128> {
    (0..count).map(|block| (u128::from(prefix) + 1) << 64 | u128::from(block + 1)).collect()
}

fn byte(prefix: u32) -> u8 {
    prefix as u8 + 1
}

fn store(engine: &mut Engine, prefix: u32, count: u32, level: Level) -> Result<(), BenchError> {
    let (hashes, own) = (hashes(prefix, count), (0..count).collect::<Vec<u32>>());
    own.iter().for_each(|block| _ = engine.client.with_block(*block, 0, |bytes| bytes.fill(byte(prefix))));
    for (i, (part, blocks)) in hashes.chunks(STORE).zip(own.chunks(STORE)).enumerate() {
        let first = i * STORE;
        let parent = if first == 0 { 0 } else { hashes[first - 1] };
        engine.store_at((first as u32, parent), part, blocks, level)?;
    }
    Ok(())
}

/// Load one prefix and return the times of lookup, lease and load.
fn hit(engine: &mut Engine, prefix: u32, count: u32) -> Result<[Duration; 3], BenchError> {
    let (hashes, own) = (hashes(prefix, count), (0..count).collect::<Vec<u32>>());
    engine.client.with_block(count - 1, 0, |bytes| bytes[..8].fill(0));
    let began = Instant::now();
    let found = trying("look up a prefix", engine.channel.lookup(&hashes, TIMEOUT))?;
    let looked_up = began.elapsed();
    if found.blocks != count {
        return Err(BenchError::Odd(format!("found {} of {count} blocks", found.blocks)));
    }
    let last = hashes.last().copied().unwrap_or_default();
    let lease = trying("lease a prefix", engine.channel.lease(last, count, TIMEOUT, TIMEOUT))?;
    let leased = began.elapsed();
    let copied = trying("load blocks", engine.channel.load(lease.seq, 0, &own, TIMEOUT))?;
    let loaded = began.elapsed();
    trying("release a lease", engine.channel.drop_seq(lease.seq))?;
    if copied.status != Status::Ok {
        return Err(BenchError::Odd(format!("{} blocks not loaded: {:?}", copied.failed.len(), copied.status)));
    }
    let right = |bytes: &mut [u8]| bytes[0] == byte(prefix) && bytes[bytes.len() - 1] == byte(prefix);
    if engine.client.with_block(count - 1, 0, right) != Some(true) {
        return Err(BenchError::Odd("a loaded block differs from the stored block".into()));
    }
    Ok([looked_up, leased - looked_up, loaded - leased])
}

//! The block API: an engine with its own KV memory, and a private daemon.
//!
//! - `lookup`: lookups and leases with the number of cached blocks of the target; `python`: the same lookups from Python
//! - `copies`: blocks of 1 MiB stored and loaded, alternated with memcpy of the same bytes
//! - `nvme`: blocks of 1 MiB loaded from NVMe, alternated with reads of the NVMe tier alone
//! - `hits`: single prefixes of 128 MiB in host memory, and the first one from NVMe after a start
//! - `index`: memory of the index
//! - `crowd`: concurrent threads and processes, each a `client`

mod client;
mod copies;
mod crowd;
mod hits;
mod lookup;
mod nvme;
mod python;

use super::engine::{TIMEOUT, trying};
use super::report::{Report, Target};
use super::{BenchError, Output, progress};
use crate::private_daemon::{Options as DaemonOptions, PrivateDaemon};
pub(super) use client::{ClientArgs, run as client};
use kvtide_client::client::{Channel, Client, Options, SpaceSpec};
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::Plane;
use kvtide_wire::status::Status;
use std::path::{Path, PathBuf};

/// Flags of `kvtide bench blocks`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct BlocksArgs {
    #[command(flatten)]
    pub(super) output: Output,
    /// Number of cached blocks during lookups
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(2048..=4_000_000))]
    blocks: u32,
    /// MiB copied in each direction per round
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(4..=4096))]
    mib: u32,
    /// Directory for the NVMe benchmarks; two files of at least --nvme-mib are created and removed at the end
    #[arg(long)]
    dir: Option<PathBuf>,
    /// MiB loaded from NVMe per round
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(256..=65536))]
    nvme_mib: u32,
    /// Python interpreter with the package `kvtide`, for lookups from Python
    #[arg(long)]
    python: Option<PathBuf>,
}

/// Run the benchmark.
pub(super) fn measure(args: &BlocksArgs) -> Result<Report, BenchError> {
    let mut report = Report::default();
    look_up(args, &mut report)?;
    progress("copies");
    let mut copies = copies::measure(args.mib)?;
    let (store, load) = (copies.store_ratio(), copies.load_ratio());
    report.number("store_ratio_memcpy", "stores of 1 MiB blocks ÷ memcpy", store, "x", Target::AtLeast(0.85));
    report.number("load_ratio_memcpy", "loads of 1 MiB blocks ÷ memcpy", load, "x", Target::AtLeast(0.85));
    report.note(copies.note());
    let what = "loads from NVMe ÷ NVMe tier alone";
    match &args.dir {
        Some(dir) => {
            progress("loads from NVMe");
            let loads = nvme::measure(dir, args.nvme_mib)?;
            report.number("load_nvme_ratio", what, loads.ratio(), "x", Target::AtLeast(0.9));
            report.note(loads.note());
        }
        None => report.missing("load_nvme_ratio", what, "needs --dir"),
    }
    hits(args, &mut report)?;
    progress("concurrent clients");
    let crowd = crowd::measure()?;
    let most = Target::AtMost(1000.0);
    report.number("concurrent_lookup_max_us", "lookups of 8 concurrent clients, max", crowd.max_us, "us", most);
    report.number("concurrent_lookup_p99_us", "lookups of 8 concurrent clients, p99", crowd.p99_us, "us", None);
    let what = "echo of a byte instead of the lookups, max";
    report.number("concurrent_machine_max_us", what, crowd.machine_max_us, "us", None);
    report.number(
        "concurrent_machine_p99_us",
        "echo of a byte instead of the lookups, p99",
        crowd.machine_p99_us,
        "us",
        None,
    );
    let what = "throughput of 8 clients ÷ one client";
    report.number("concurrent_throughput_ratio", what, crowd.ratio(), "x", Target::AtLeast(1.0));
    report.note(crowd.note());
    Ok(report)
}

fn hits(args: &BlocksArgs, report: &mut Report) -> Result<(), BenchError> {
    progress("single hits");
    let mut hits = hits::in_host()?;
    let (ratio, longest, plain) = (hits.ratio(), hits.max_ratio(), hits.memcpy_max_ratio());
    report.number("hit_host_ratio_memcpy", "hit of 128 MiB in host memory ÷ memcpy, medians", ratio, "x", None);
    report.number("hit_host_max_ratio", "hit of 128 MiB in host memory, max ÷ median", longest, "x", None);
    report.number("hit_host_max_ratio_memcpy", "memcpy of 128 MiB, max ÷ median", plain, "x", None);
    report.note(hits.note());
    let what = "first hit on NVMe after a start ÷ later hits";
    match &args.dir {
        Some(dir) => {
            let (ratio, note) = hits::after_start(dir)?;
            report.number("hit_first_ratio", what, ratio, "x", Target::AtMost(1.5));
            report.note(note);
        }
        None => report.missing("hit_first_ratio", what, "needs --dir"),
    }
    Ok(())
}

fn look_up(args: &BlocksArgs, report: &mut Report) -> Result<(), BenchError> {
    progress("lookups");
    let found = lookup::measure(args.blocks, args.python.as_deref())?;
    let what = "longest prefix of 1,024 blocks, p50";
    report.number("lookup_1024_p50_us", what, found.p50_us, "us", Target::AtMost(10.0));
    report.number("lookup_1024_p99_us", "longest prefix of 1,024 blocks, p99", found.p99_us, "us", None);
    let what = "longest prefix from Python, p50";
    match found.python_us {
        Some((p50, p99)) => {
            report.number("lookup_python_1024_p50_us", what, p50, "us", Target::AtMost(30.0));
            report.number("lookup_python_1024_p99_us", "longest prefix from Python, p99", p99, "us", None);
        }
        None => {
            let why = "needs --python";
            report.missing("lookup_python_1024_p50_us", what, why);
        }
    }
    report.number("lease_1024_p50_us", "lease on 1,024 blocks, p50", found.lease_us, "us", None);
    report.note(format!("lookups with {} blocks cached, stored at {} blocks/s", args.blocks, found.stored_per_s));
    Ok(())
}

/// Return the median.
fn median(figures: &[f64]) -> f64 {
    let mut figures = figures.to_vec();
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

/// An engine without tier 0, with its blocks in one tensor.
struct Engine {
    channel: Channel,
    client: Client,
}

impl Engine {
    /// Attach with `blocks` blocks of `block_bytes` in one plane.
    fn attach(socket: &Path, block_bytes: u32, blocks: u32) -> Result<Engine, BenchError> {
        Engine::with(socket, block_bytes, blocks, 1)
    }

    /// Attach with several channels, and use the first.
    fn with(socket: &Path, block_bytes: u32, blocks: u32, channels: u16) -> Result<Engine, BenchError> {
        let space = SpaceSpec::new("bench-blocks", [11; 32], 16, vec![Plane::full(block_bytes)]);
        let options = Options { timeout: TIMEOUT, channels, ..Options::new(socket.into(), space, vec![0]) };
        let client = trying("attach", Client::attach(options))?;
        let channel = trying("get the channel", client.channel(0))?;
        trying("allocate blocks", client.allocate_blocks(blocks))?;
        Ok(Engine { channel, client })
    }

    /// Store a run of a chain from the engine's own blocks. All must become findable.
    fn store(&mut self, at: (u32, u128), hashes: &[u128], own: &[u32]) -> Result<(), BenchError> {
        self.store_at(at, hashes, own, Level::Published)
    }

    /// Store up to a durability level.
    fn store_at(&mut self, at: (u32, u128), hashes: &[u128], own: &[u32], level: Level) -> Result<(), BenchError> {
        let stored = self.channel.store(at, hashes, own, level, TIMEOUT);
        let copied = trying("store blocks", stored)?;
        if copied.status == Status::Ok {
            return Ok(());
        }
        Err(BenchError::Odd(format!("{} of {} blocks not stored: {:?}", copied.failed.len(), own.len(), copied.status)))
    }
}

/// Start a daemon with room for `bytes` bytes of blocks.
fn daemon(bytes: u64, blocks: u32) -> Result<PrivateDaemon, BenchError> {
    let config = format!("[limits]\nblocks_max = {}\n", blocks + blocks / 8 + 4096);
    let options = DaemonOptions {
        host_bytes: Some(bytes),
        slab_bytes: Some(64 << 20),
        config: Some(config),
        ..DaemonOptions::default()
    };
    Ok(PrivateDaemon::start(&options)?)
}

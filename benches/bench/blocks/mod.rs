//! The block API: an engine with its own KV memory, and a private daemon.
//!
//! - `lookup`: lookups and leases with the number of cached blocks of the target; `python`: the same lookups from Python
//! - `copies`: blocks of 1 MiB stored and loaded, alternated with memcpy of the same bytes
//! - `nvme`: blocks of 1 MiB loaded from NVMe, alternated with reads of the NVMe tier alone
//! - `crowd`: concurrent threads, each a `client`

mod client;
mod copies;
mod crowd;
mod lookup;
mod nvme;
mod python;

use super::block_engine::{BlockEngine, block_space, spread};
use super::engine::{TIMEOUT, trying};
use super::report::{Report, Target};
use super::{BenchError, Output, progress};
use crate::private_daemon::{Options as DaemonOptions, PrivateDaemon};
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
    /// Directory for the NVMe benchmarks; files of at least --nvme-mib are created and removed at the end
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
    progress("concurrent clients");
    let mut crowd = crowd::measure()?;
    for (key, what, stats) in [
        ("concurrent_lookup", "lookups of 8 concurrent clients", &mut crowd.lookups),
        ("concurrent_machine", "echo of a byte instead of the lookups", &mut crowd.machine),
    ] {
        let most = (key == "concurrent_lookup").then_some(Target::AtMost(1000.0));
        report.number(format!("{key}_max_us"), format!("{what}, max"), stats.percentile_us(100), "us", most);
        report.number(format!("{key}_p99_us"), format!("{what}, p99"), stats.percentile_us(99), "us", None);
    }
    let what = "throughput of 8 clients ÷ one client";
    report.number("concurrent_throughput_ratio", what, crowd.ratio(), "x", Target::AtLeast(1.0));
    report.note(crowd.note());
    Ok(report)
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

/// Attach with `own` blocks of `block_bytes` in one plane.
fn attach(socket: &Path, block_bytes: u32, own: u32) -> Result<BlockEngine, BenchError> {
    BlockEngine::attach(socket, block_space("bench-blocks", 11, block_bytes, 1), own, TIMEOUT)
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

//! `kvtide bench`: benchmarks, each figure next to its target.
//!
//! `bench ring`, `bench blocks`, `bench spaces`, `bench paging` and `bench pressure` run engines with a private daemon and use the
//! client library. `bench attention` drives the sans-IO core alone, over simulated devices, and the demo's model with a private daemon. `bench nvme` drives a disk's I/O thread as a core thread does. `bench codec`
//! compresses and encrypts pages of the demo's model. `bench recovery` opens an index log as a start does. `bench gpu`
//! measures a device. `cargo bench -p kvtide-bench` measures the core alone, counting allocations. `kvtide-bench-remote`, a program of its own, runs relays beside private daemons, with a store.
//!
//! The command line calls [`run`]; the other public items are for `kvtide-bench-remote`. This module does not depend on the daemon's
//! internals.

mod attention;
mod block_engine;
mod blocks;
mod codec;
mod core;
mod engine;
mod error;
mod faults;
mod folder;
mod gpu;
mod nvme;
mod paging;
mod pressure;
mod recovery;
mod report;
mod ring;
mod spaces;

pub use block_engine::{BlockEngine, block_space, spread};
pub use engine::{TIMEOUT, trying};
pub use error::BenchError;
pub use nvme::{Stop, failed};
pub use report::{Report, Target};

use kvtide_daemon::output;
use std::fmt::Display;
use std::process::ExitCode;

/// Exit status of a benchmark that could not be run.
const NOT_RUN: u8 = 2;

/// Flags of `kvtide bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    which: Which,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Which {
    /// Codecs and encryption on real KV: compression ratio, CPU time, break-even drive speed
    #[command(after_help = "Examples:\n  kvtide bench codec\n  kvtide bench codec --json")]
    Codec(codec::CodecArgs),
    /// Engine and private daemon: round trips, lookups, page faults, copies, idle CPU
    #[command(after_help = "Examples:\n  kvtide bench ring\n  kvtide bench ring --json")]
    Ring(Output),
    /// Block API: lookups and leases with a million cached blocks, stores and loads relative to memcpy
    #[command(after_help = "Examples:\n  kvtide bench blocks --dir /var/tmp/kvtide-bench\n  \
        kvtide bench blocks --dir /var/tmp/kvtide-bench --json")]
    Blocks(blocks::BlocksArgs),
    /// Several models on one daemon: hit rate of a second model, number of models served in turn
    #[command(after_help = "Examples:\n  kvtide bench spaces\n  kvtide bench spaces --json")]
    Spaces(spaces::SpacesArgs),
    /// Attention predictor and planner: CPU time per page and plane
    #[command(after_help = "Examples:\n  kvtide bench attention\n  kvtide bench attention --json")]
    Attention(attention::AttentionArgs),
    /// Page faults from host memory and from NVMe, with working sets of twice the upper tiers
    #[command(after_help = "Examples:\n  kvtide bench paging\n  kvtide bench paging --json")]
    Paging(paging::Args),
    /// Disk I/O thread: reads, writes, CPU time, checksums; optionally compared with fio
    #[command(after_help = "Examples:\n  kvtide bench nvme --dir /var/tmp/kvtide-bench --seconds 3\n  \
        kvtide bench nvme --dir /var/tmp/kvtide-bench --seconds 3 --fio")]
    Nvme(nvme::NvmeArgs),
    /// Stores faster than the disk: throughput relative to fio, hit rate, latency of lookups and metrics
    #[command(after_help = "Examples:\n  kvtide bench pressure --dir /var/tmp/kvtide-bench\n  \
        kvtide bench pressure --dir /var/tmp/kvtide-bench --json")]
    Pressure(pressure::PressureArgs),
    /// Start with a full index of 500,000 records, without the page cache
    #[command(after_help = "Examples:\n  kvtide bench recovery --dir /var/tmp/kvtide-bench\n  \
        kvtide bench recovery --dir /var/tmp/kvtide-bench --json")]
    Recovery(recovery::RecoveryArgs),
    /// GPU: copies, attention, steps, and transfers to its memory, as ratios measured in one run
    #[command(after_help = "Examples:\n  kvtide bench gpu\n  kvtide bench gpu --json")]
    Gpu(gpu::Args),
}

/// How figures are printed.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Output {
    /// Print one JSON object only
    #[arg(long)]
    json: bool,
}

/// Measure the core alone, on one thread with simulated devices.
///
/// # Errors
/// The global allocator is not `stats_alloc::INSTRUMENTED_SYSTEM`, or the core refuses something.
pub fn core() -> Result<Report, BenchError> {
    core::measure()
}

/// Return what no machine changes of this measurement: hashes of the core's actions, counts and bytes, a line each.
///
/// # Errors
/// Those of [`core`].
pub fn core_counts() -> Result<String, BenchError> {
    core::counts()
}

/// Run a benchmark and print its figures. A missed target is shown but is not an error, because machines differ.
#[must_use]
pub fn run(args: &Args) -> ExitCode {
    let (measured, shape) = match &args.which {
        Which::Gpu(args) => return gpu::run(args),
        Which::Codec(args) => (codec::measure(args), args.output),
        Which::Ring(output) => (ring::measure(), *output),
        Which::Blocks(args) => (blocks::measure(args), args.output),
        Which::Spaces(args) => (spaces::measure(args), args.output),
        Which::Attention(args) => (attention::measure(args), args.output),
        Which::Paging(args) => (paging::measure(args), args.output),
        Which::Nvme(args) => (nvme::measure(args), args.output),
        Which::Pressure(args) => (pressure::measure(args), args.output),
        Which::Recovery(args) => (recovery::measure(args), args.output),
    };
    print(measured, shape)
}

/// Print the figures of a benchmark, or why it could not be run, which the exit status says too.
#[must_use]
pub fn print<E: Display>(measured: Result<Report, E>, shape: Output) -> ExitCode {
    match measured {
        Ok(report) => output::print(&if shape.json { report.json() } else { report.table() }, ExitCode::SUCCESS),
        Err(error) => {
            output::say(format_args!("kvtide bench: {error}"));
            ExitCode::from(NOT_RUN)
        }
    }
}

/// Print a progress message.
pub fn progress(what: &str) {
    output::say(format_args!("kvtide bench: {what}"));
}

/// Return a percentile of the samples, which it sorts; 0 without samples.
pub fn percentile(samples: &mut [u64], percent: usize) -> u64 {
    samples.sort_unstable();
    samples.get((samples.len() * percent / 100).min(samples.len().saturating_sub(1))).copied().unwrap_or(0)
}

/// Return the median; 0 without figures.
#[must_use]
pub fn median(figures: &[f64]) -> f64 {
    let mut figures = figures.to_vec();
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles_are_of_the_sorted_samples() {
        let mut samples: Vec<u64> = (0..100).rev().collect();
        assert_eq!((percentile(&mut samples, 50), percentile(&mut samples, 99)), (50, 99));
        assert_eq!((percentile(&mut [7], 99), percentile(&mut [], 50)), (7, 0));
    }
}

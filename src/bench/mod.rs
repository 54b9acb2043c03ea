//! `kvtide bench`: the figures that this project promises, measured, each beside its target.
//!
//! `bench ring`, `bench blocks`, `bench spaces`, `bench paging` and `bench pressure` are engines beside a private daemon and use the client as any engine would; `bench core`
//! and `bench attention` drive the sans-IO core alone, over simulated devices, the second also the demo's model beside a private daemon; `bench nvme` drives a disk's I/O thread as a core thread does; `bench codec` codes and encrypts pages of the demo's model. `bench recovery`
//! opens an index log as a start does, and `bench gpu` measures a device. The
//! command line calls [`run`]; nothing else may call in here, and nothing in here knows how the daemon works inside.

mod attention;
mod blocks;
mod codec;
mod core;
mod engine;
mod error;
mod gpu;
mod idle;
mod nvme;
mod paging;
mod pressure;
mod recovery;
mod report;
mod ring;
mod spaces;

pub use error::BenchError;

use crate::output;
use std::process::ExitCode;

/// Exit status of a bench that could not be run.
const NOT_RUN: u8 = 2;

/// What `kvtide bench` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    which: Which,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Which {
    /// Codecs and encryption on the KV of the demo's model: ratio, CPU, break-even
    Codec(codec::CodecArgs),
    /// Between an engine and a private daemon: round trips, look-ups, faults, copies, idle cost
    Ring(Output),
    /// Blocks of an engine's own memory: look-ups and leases with a million cached, stores and loads against memcpy
    Blocks(blocks::BlocksArgs),
    /// A client of `bench blocks` that is a process of its own, which that bench starts
    #[command(name = "blocks-client", hide = true)]
    BlocksClient(blocks::ClientArgs),
    /// Several models over one daemon: what a second one finds, and how many are served one after another
    Spaces(spaces::SpacesArgs),
    /// The core alone, one thread, simulated devices: transitions, allocations, metadata
    Core(Output),
    /// Predictor and planner: what scores of attention cost, by page and plane
    Attention(attention::AttentionArgs),
    /// Page faults and rates between tier 0, host memory and NVMe, with working sets of twice what the tiers above hold
    Paging(paging::Args),
    /// A disk's I/O thread on a file: reads, writes, CPU, checksums, beside fio if wanted
    Nvme(nvme::NvmeArgs),
    /// Stores that outrun the disk: rate beside fio, hits afterwards, latency of look-ups and metrics meanwhile
    Pressure(pressure::PressureArgs),
    /// A start with a full index: 500,000 records over a file past the page cache
    Recovery(recovery::RecoveryArgs),
    /// A GPU: copies, attention, steps, and the paths that end in its memory; each as a ratio measured in one run
    Gpu(gpu::Args),
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct Output {
    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,
}

/// Runs a bench and prints its figures. A missed target is shown and is no error: machines differ.
#[must_use]
pub fn run(args: &Args) -> ExitCode {
    let (measured, shape) = match &args.which {
        Which::Gpu(args) => return gpu::run(args),
        Which::BlocksClient(args) => return blocks::client(args),
        Which::Codec(args) => (codec::measure(args), args.output),
        Which::Ring(output) => (ring::measure(), *output),
        Which::Blocks(args) => (blocks::measure(args), args.output),
        Which::Spaces(args) => (spaces::measure(args), args.output),
        Which::Core(output) => (core::measure(), *output),
        Which::Attention(args) => (attention::measure(args), args.output),
        Which::Paging(args) => (paging::measure(args), args.output),
        Which::Nvme(args) => (nvme::measure(args), args.output),
        Which::Pressure(args) => (pressure::measure(args), args.output),
        Which::Recovery(args) => (recovery::measure(args), args.output),
    };
    match measured {
        Ok(report) => output::print(&if shape.json { report.json() } else { report.table() }, ExitCode::SUCCESS),
        Err(error) => {
            output::say(format_args!("kvtide bench: {error}"));
            ExitCode::from(NOT_RUN)
        }
    }
}

/// Says what is being measured, for whoever waits.
fn progress(what: &str) {
    output::say(format_args!("kvtide bench: {what}"));
}

/// The `percent`th percentile of some samples, which it sorts; 0 of none.
fn percentile(samples: &mut [u64], percent: usize) -> u64 {
    samples.sort_unstable();
    samples.get((samples.len() * percent / 100).min(samples.len().saturating_sub(1))).copied().unwrap_or(0)
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

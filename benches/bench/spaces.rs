//! Several models on one daemon: room for a second model after the first has filled host memory, and the number of models served in
//! turn.

use super::block_engine::{BlockEngine, block_space};
use super::engine::{TIMEOUT, trying};
use super::report::{Report, Target};
use super::{BenchError, Output, progress};
use crate::private_daemon::{Nvme, Options as DaemonOptions, PrivateDaemon};
use kvtide_wire::entry::Level;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;
const HOST_BYTES: u64 = 256 * MIB;
const SLAB_BYTES: u64 = 16 * MIB;
const NVME_BYTES: u64 = 1 << 30;
const BLOCK_BYTES: u32 = 64 << 10;
/// Blocks of a prefix, and of an engine.
const PREFIX: u32 = 32;
/// The first model stores as many blocks as host memory holds; the second stores 96 MiB.
const FIRST: u32 = (HOST_BYTES / BLOCK_BYTES as u64) as u32;
const SECOND: u32 = (96 * MIB / BLOCK_BYTES as u64) as u32;
/// Models in turn; more than `limits.spaces_max` allows at the same time.
const MODELS: u8 = 30;

/// Flags of `kvtide bench spaces`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct SpacesArgs {
    #[command(flatten)]
    pub(super) output: Output,
    /// Directory for an NVMe tier of 1 GiB, removed at the end (default: no NVMe tier)
    #[arg(long)]
    dir: Option<PathBuf>,
}

fn attach(daemon: &PrivateDaemon, model: u8) -> Result<BlockEngine, BenchError> {
    let space = block_space(format!("bench-model-{model}"), model, BLOCK_BYTES, 1);
    BlockEngine::attach(daemon.socket(), space, PREFIX, TIMEOUT)
}

/// Store prefixes once each, whether there is room or not.
fn store(engine: &mut BlockEngine, blocks: u32) {
    let own: Vec<u32> = (0..PREFIX).collect();
    for prefix in 0..blocks / PREFIX {
        // A store may fail for lack of room; the lookups afterwards count the result.
        let _ = engine.store((0, 0), &hashes(prefix), &own, Level::Published);
    }
}

/// Return the part of the prefixes' blocks that is found.
fn found(engine: &mut BlockEngine, blocks: u32) -> Result<f64, BenchError> {
    let mut found = 0;
    for prefix in 0..blocks / PREFIX {
        found += trying("look up a prefix", engine.channel.lookup(&hashes(prefix), TIMEOUT))?.blocks;
    }
    Ok(f64::from(found) / f64::from(blocks))
}

fn hashes(prefix: u32) -> Vec<u128> {
    (1..=u128::from(PREFIX)).map(|block| u128::from(prefix + 1) << 64 | block).collect()
}

fn daemon(args: &SpacesArgs) -> Result<PrivateDaemon, BenchError> {
    let nvme = args.dir.clone().map(|dir| Nvme { dir: Some(dir), bytes: NVME_BYTES });
    let (host_bytes, slab_bytes) = (Some(HOST_BYTES), Some(SLAB_BYTES));
    Ok(PrivateDaemon::start(&DaemonOptions { host_bytes, slab_bytes, nvme, ..DaemonOptions::default() })?)
}

/// Run the benchmark.
pub(super) fn measure(args: &SpacesArgs) -> Result<Report, BenchError> {
    let mut report = Report::default();
    for (key, what, stays) in [
        ("second_found_gone", "hit rate of a second model, first one filled host memory and detached", false),
        ("second_found_idle", "hit rate of a second model, first one filled host memory and is idle", true),
    ] {
        progress(what);
        let daemon = daemon(args)?;
        let mut first = attach(&daemon, 1)?;
        store(&mut first, FIRST);
        let first = stays.then_some(first);
        let mut second = attach(&daemon, 2)?;
        store(&mut second, SECOND);
        report.fine(key, what, (found(&mut second, SECOND)?, 3), "", Some(Target::AtLeast(0.9)));
        drop(first);
    }
    let what = "models in turn that find all their blocks";
    progress(what);
    let daemon = daemon(args)?;
    let mut served = 0;
    for model in 1..=MODELS {
        let Ok(mut engine) = attach(&daemon, model) else { continue };
        store(&mut engine, PREFIX);
        served += u64::from(found(&mut engine, PREFIX)? >= 1.0);
    }
    report.count("models_served", what, served, "", Some(Target::AtLeast(MODELS.into())));
    Ok(report)
}

//! Several models on one daemon: room for a second model after the first has filled host memory, and the number of models served in
//! turn.

use super::engine::{TIMEOUT, trying};
use super::report::{Report, Target};
use super::{BenchError, Output, progress};
use crate::private_daemon::{Nvme, Options as DaemonOptions, PrivateDaemon};
use kvtide_client::client::{Channel, Client, Options, SpaceSpec};
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::Plane;
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

/// An engine of one model, without tier 0.
struct Engine {
    channel: Channel,
    _client: Client,
}

impl Engine {
    fn attach(daemon: &PrivateDaemon, model: u8) -> Result<Engine, BenchError> {
        let space = SpaceSpec::new(format!("bench-model-{model}"), [model; 32], 16, vec![Plane::full(BLOCK_BYTES)]);
        let options = Options { timeout: TIMEOUT, ..Options::new(daemon.socket().into(), space, vec![0]) };
        let client = trying("attach", Client::attach(options))?;
        let channel = trying("get the channel", client.channel(0))?;
        trying("allocate blocks", client.allocate_blocks(PREFIX))?;
        Ok(Engine { channel, _client: client })
    }

    /// Store prefixes once each, whether there is room or not.
    fn store(&mut self, blocks: u32) {
        let own: Vec<u32> = (0..PREFIX).collect();
        for prefix in 0..blocks / PREFIX {
            // A store may fail for lack of room; the lookups afterwards count the result.
            let _ = self.channel.store((0, 0), &hashes(prefix), &own, Level::Published, TIMEOUT);
        }
    }

    /// Return the part of the prefixes' blocks that is found.
    fn found(&mut self, blocks: u32) -> Result<f64, BenchError> {
        let mut found = 0;
        for prefix in 0..blocks / PREFIX {
            found += trying("look up a prefix", self.channel.lookup(&hashes(prefix), TIMEOUT))?.blocks;
        }
        Ok(f64::from(found) / f64::from(blocks))
    }
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
        let mut first = Engine::attach(&daemon, 1)?;
        first.store(FIRST);
        let first = stays.then_some(first);
        let mut second = Engine::attach(&daemon, 2)?;
        second.store(SECOND);
        report.fine(key, what, (second.found(SECOND)?, 3), "", Some(Target::AtLeast(0.9)));
        drop(first);
    }
    let what = "models in turn that find all their blocks";
    progress(what);
    let daemon = daemon(args)?;
    let mut served = 0;
    for model in 1..=MODELS {
        let Ok(mut engine) = Engine::attach(&daemon, model) else { continue };
        engine.store(PREFIX);
        served += u64::from(engine.found(PREFIX)? >= 1.0);
    }
    report.count("models_served", what, served, "", Some(Target::AtLeast(MODELS.into())));
    Ok(report)
}

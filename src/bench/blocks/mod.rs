//! The block API: an engine that keeps its KV in memory of its own, beside a private daemon.
//!
//! Look-ups are measured with as many blocks cached as the targets name, copies with blocks of 1 MiB, each alternated with memcpy of
//! the same bytes between buffers of the same sizes.

mod copies;
mod lookup;

use super::engine::{TIMEOUT, trying};
use super::report::{Report, Target};
use super::{BenchError, Output, progress};
use crate::cli::private_daemon::{Options as DaemonOptions, PrivateDaemon};
use kvtide_client::client::{Channel, Client, Options, SpaceSpec};
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::PlaneSpec;
use kvtide_wire::status::Status;
use std::path::Path;

/// What `kvtide bench blocks` takes.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct BlocksArgs {
    #[command(flatten)]
    pub(super) output: Output,
    /// Blocks that are cached while look-ups are measured
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(2048..=4_000_000))]
    blocks: u32,
    /// MiB that are copied each way in a round
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(4..=4096))]
    mib: u32,
}

/// Measures.
pub(super) fn measure(args: &BlocksArgs) -> Result<Report, BenchError> {
    let mut report = Report::default();
    progress("look-ups");
    let found = lookup::measure(args.blocks)?;
    let what = "longest prefix of 1,024 blocks, p50";
    report.number("lookup_1024_p50_us", what, found.p50_us, "us", Target::AtMost(10.0));
    report.number("lookup_1024_p99_us", "the same, p99", found.p99_us, "us", None);
    report.number("lease_1024_p50_us", "a lease on 1,024 blocks, p50", found.lease_us, "us", None);
    progress("copies");
    let mut copies = copies::measure(args.mib)?;
    let (store, load) = (copies.store_ratio(), copies.load_ratio());
    report.number("store_ratio_memcpy", "stores of 1 MiB blocks against memcpy", store, "x", Target::AtLeast(0.85));
    report.number("load_ratio_memcpy", "loads of 1 MiB blocks against memcpy", load, "x", Target::AtLeast(0.85));
    report.note(copies.note());
    report.note(format!("look-ups with {} blocks cached, {} a second were stored", args.blocks, found.stored_per_s));
    Ok(report)
}

/// An engine without tier 0, whose own blocks are one tensor.
struct Engine {
    channel: Channel,
    client: Client,
}

impl Engine {
    /// A session over blocks of `block_bytes` in one plane, with `blocks` blocks of its own.
    fn attach(socket: &Path, block_bytes: u32, blocks: u32) -> Result<Engine, BenchError> {
        let space = SpaceSpec {
            name: "bench-blocks".into(),
            fingerprint: [11; 32],
            page_tokens: 16,
            planes: vec![PlaneSpec { page_bytes: block_bytes, ..PlaneSpec::default() }],
            shards: 1,
            shard: 0,
        };
        let options = Options { timeout: TIMEOUT, ..Options::new(socket.into(), space, vec![0]) };
        let client = trying("attach", Client::attach(options))?;
        let channel = trying("take the channel", client.channel(0))?;
        trying("allocate blocks", client.allocate_blocks(blocks))?;
        Ok(Engine { channel, client })
    }

    /// Stores a run of a chain from blocks of the engine's own, which all must become findable.
    fn store(&mut self, (first, parent): (u32, u128), hashes: &[u128], own: &[u32]) -> Result<(), BenchError> {
        let stored = self.channel.store((first, parent), hashes, own, Level::Published, TIMEOUT);
        let copied = trying("store blocks", stored)?;
        if copied.status == Status::Ok {
            return Ok(());
        }
        Err(BenchError::Odd(format!(
            "{} of {} blocks were not stored: {:?}",
            copied.failed.len(),
            own.len(),
            copied.status
        )))
    }
}

/// A daemon with room for so many bytes of blocks.
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

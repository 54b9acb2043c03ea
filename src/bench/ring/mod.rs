//! An engine beside a private daemon: two processes, this one and its child.
//!
//! Every figure is measured with a session of its own, sized so that the others do not disturb it. Ratios are taken in
//! alternation with what they are compared to, so that a noisy machine disturbs both.

mod copy;
mod fault;
mod idle;
mod resident;
mod roundtrip;

use super::BenchError;
use super::report::{Report, Target};
use crate::cli::private_daemon::{Options as DaemonOptions, PrivateDaemon};
use kvtide_client::client::{Channel, Client, Error, Lane, Options, SeqId, SpaceSpec};
use kvtide_wire::geometry::PlaneSpec;
use std::path::Path;
use std::time::Duration;

/// Bytes of every page: the size that the targets name.
const PAGE_BYTES: u32 = 64 << 10;
/// Tokens of every page.
const PAGE_TOKENS: u64 = 16;
/// Tokens of a prefill chunk.
const CHUNK_TOKENS: u64 = 512;
/// Bound of every wait.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Host memory of the daemon: what the largest session stores, and slabs that are not full.
const HOST_BYTES: u64 = 1 << 30;
/// One slab.
const SLAB_BYTES: u64 = 64 << 20;

/// Measures.
pub(super) fn measure() -> Result<Report, BenchError> {
    let options =
        DaemonOptions { host_bytes: Some(HOST_BYTES), slab_bytes: Some(SLAB_BYTES), ..DaemonOptions::default() };
    let mut daemon = PrivateDaemon::start(&options)?;
    let mut report = Report::default();
    let at_most = |most: f64| Some(Target::AtMost(most));

    let trips = roundtrip::measure(daemon.socket())?;
    report.count("noop_p50_ns", "no-op round trip, both awake, p50", trips.p50_ns, "ns", at_most(2000.0));
    report.count("noop_p99_ns", "no-op round trip, both awake, p99", trips.p99_ns, "ns", None);
    report.count("wake_p50_ns", "no-op round trip from idle, p50", trips.wake_p50_ns, "ns", at_most(80_000.0));

    let resident = resident::measure(daemon.socket())?;
    report.number("lookup_ns_per_page", "table look-up", resident.lookup_ns, "ns a page", Target::AtMost(5.0));
    let fault_ns = fault::measure(daemon.socket())?;
    report.count("fault_p50_ns", "page fault, host to tier 0, 64 KiB, p50", fault_ns, "ns", at_most(25_000.0));
    let what = "messages before a step with everything resident";
    report.count("resident_messages", what, resident.messages, "", at_most(0.0));
    let what = "agent's work with everything resident";
    report.number("resident_ns_per_plane", what, resident.plane_ns, "ns a plane", Target::AtMost(1000.0));

    let idle = idle::measure(&daemon)?;
    report.number("idle_cpu_percent", "idle daemon, one session, 10 s", idle, "% of a core", Target::AtMost(0.5));

    let mut copies = copy::measure(daemon.socket())?;
    let what = "copies of 64 KiB pages against memcpy";
    report.number("copy_ratio_memcpy", what, copies.ratio(), "x", Target::AtLeast(0.9));
    report.note(copies.note());
    daemon.stop()?;
    Ok(report)
}

/// A session over pages of [`PAGE_BYTES`].
struct Engine {
    client: Client,
    channel: Channel,
    lane: Lane,
}

/// Says what was tried.
fn trying<T>(tried: &'static str, result: Result<T, Error>) -> Result<T, BenchError> {
    result.map_err(|source| BenchError::Client { tried, source })
}

impl Engine {
    fn attach(socket: &Path, name: &str, planes: usize, frames: u32, seqs_max: u32) -> Result<Engine, BenchError> {
        let planes = vec![PlaneSpec { page_bytes: PAGE_BYTES, ..PlaneSpec::default() }; planes];
        let space = SpaceSpec {
            name: format!("bench-{name}"),
            fingerprint: std::array::from_fn(|i| name.as_bytes().get(i).copied().unwrap_or(0)),
            page_tokens: PAGE_TOKENS as u32,
            planes,
            shards: 1,
            shard: 0,
        };
        let options = Options { seqs_max, timeout: TIMEOUT, ..Options::new(socket.into(), space, vec![frames]) };
        let client = trying("attach", Client::attach(options))?;
        let channel = trying("take the channel", client.channel(0))?;
        let lane = trying("take the lane", client.lane(0))?;
        Ok(Engine { client, channel, lane })
    }

    /// A new sequence of so many sealed blocks, whatever their frames hold, prefilled in chunks as an engine does it.
    fn sealed(&mut self, blocks: u64) -> Result<SeqId, BenchError> {
        let seq = trying("create a sequence", self.channel.seq_create())?;
        let mut tokens = 0;
        while tokens < blocks * PAGE_TOKENS {
            tokens = (tokens + CHUNK_TOKENS).min(blocks * PAGE_TOKENS);
            trying("reserve", self.channel.reserve(seq, tokens, TIMEOUT))?;
            trying("commit", self.channel.commit(seq, tokens))?;
        }
        Ok(seq)
    }
}

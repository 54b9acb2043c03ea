//! Transfer rates: sequences that fill the tiers are written, and one is read as a whole, step by step.

use super::super::BenchError;
use super::super::engine::{Engine, PAGE_TOKENS, trying};
use super::{TIER0_FRAMES, counted};
use crate::private_daemon::PrivateDaemon;
use kvtide_client::client::{Pass, SeqId, StepSeq};
use std::time::{Duration, Instant};

const PLANES: u32 = 8;
const SPACE: &str = "bench-rate";
/// Minimum time of writing, and of reading.
const TIME: Duration = Duration::from_secs(1);

/// Bytes a second by edge.
pub(super) struct Rates {
    pub(super) host_to_tier0: f64,
    pub(super) tier0_to_host: f64,
    pub(super) nvme_to_host: f64,
    pub(super) host_to_nvme: f64,
}

/// Bytes moved so far over all edges, and the time.
struct Mark {
    host_to_tier0: u64,
    tier0_to_host: u64,
    nvme_to_host: u64,
    host_to_nvme: u64,
    at: Instant,
}

impl Mark {
    fn now(engine: &Engine, daemon: &mut PrivateDaemon) -> Result<Mark, BenchError> {
        let stats = engine.client.stats();
        let at = Instant::now();
        Ok(Mark {
            host_to_tier0: stats.bytes_host_to_tier0,
            tier0_to_host: stats.bytes_tier0_to_host,
            nvme_to_host: counted(daemon, SPACE, "/nvme_to_host/bytes")?,
            host_to_nvme: counted(daemon, SPACE, "/host_to_nvme/bytes")?,
            at,
        })
    }
}

/// Measure with sequences of `pages` pages. The first rounds map memory and reach a steady state, and are not counted.
pub(super) fn measure(daemon: &mut PrivateDaemon, pages: u32) -> Result<Rates, BenchError> {
    let mut engine = Engine::attach(daemon.socket(), "rate", PLANES as usize, TIER0_FRAMES, 4)?;
    let blocks = u64::from(pages / PLANES);
    write(&mut engine, blocks)?;
    let (before, mut wrote) = (Mark::now(&engine, daemon)?, Duration::ZERO);
    while wrote < TIME {
        let began = Instant::now();
        write(&mut engine, blocks)?;
        wrote += began.elapsed();
    }
    let down = Mark::now(&engine, daemon)?;
    let seq = engine.sealed(blocks)?;
    step(&mut engine, seq, blocks)?;
    let read = Mark::now(&engine, daemon)?;
    while read.at.elapsed() < TIME {
        step(&mut engine, seq, blocks)?;
    }
    let up = Mark::now(&engine, daemon)?;
    let (wrote, took) = (wrote.as_secs_f64(), (up.at - read.at).as_secs_f64());
    Ok(Rates {
        host_to_tier0: (up.host_to_tier0 - read.host_to_tier0) as f64 / took,
        tier0_to_host: (down.tier0_to_host - before.tier0_to_host) as f64 / wrote,
        nvme_to_host: (up.nvme_to_host - read.nvme_to_host) as f64 / took,
        host_to_nvme: (down.host_to_nvme - before.host_to_nvme) as f64 / wrote,
    })
}

/// Write and drop a sequence.
fn write(engine: &mut Engine, blocks: u64) -> Result<(), BenchError> {
    let seq = engine.sealed(blocks)?;
    trying("drop a sequence", engine.channel.drop_seq(seq))
}

/// Run one step over all pages.
fn step(engine: &mut Engine, seq: SeqId, blocks: u64) -> Result<(), BenchError> {
    trying("begin a step", engine.lane.begin(&[StepSeq { seq, tokens: blocks * PAGE_TOKENS }]))?;
    for plane in 0..PLANES as u16 {
        while let Pass::Part { last: false, .. } = trying("cross a boundary", engine.lane.boundary(plane))? {}
    }
    trying("end a step", engine.lane.end())
}

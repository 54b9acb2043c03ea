//! Rates: a sequence that fills the tiers is written, and then read as a whole, step by step.

use super::super::BenchError;
use super::super::engine::{Engine, PAGE_TOKENS, trying};
use super::{TIER0_FRAMES, counted};
use crate::cli::private_daemon::PrivateDaemon;
use kvtide_client::client::{Pass, SeqId, StepSeq};
use std::time::{Duration, Instant};

const PLANES: u32 = 8;
/// How long the sequence is read, at least.
const TIME: Duration = Duration::from_secs(1);

/// Bytes a second by edge.
pub(super) struct Rates {
    pub(super) host_to_tier0: f64,
    pub(super) tier0_to_host: f64,
    pub(super) nvme_to_host: f64,
    pub(super) host_to_nvme: f64,
}

/// Of a sequence of `pages` pages.
pub(super) fn measure(daemon: &mut PrivateDaemon, pages: u32) -> Result<Rates, BenchError> {
    let space = "bench-rate";
    let mut engine = Engine::attach(daemon.socket(), "rate", PLANES as usize, TIER0_FRAMES, 4)?;
    let blocks = u64::from(pages / PLANES);
    let began = Instant::now();
    let seq = engine.sealed(blocks)?;
    let time = began.elapsed().as_secs_f64();
    let tier0_to_host = engine.client.stats().bytes_tier0_to_host as f64 / time;
    let host_to_nvme = counted(daemon, space, "/host_to_nvme/bytes")? as f64 / time;
    // The first step brings everything into the order in which it is read.
    step(&mut engine, seq, blocks)?;
    let loaded = engine.client.stats().bytes_host_to_tier0;
    let read = counted(daemon, space, "/nvme_to_host/bytes")?;
    let began = Instant::now();
    while began.elapsed() < TIME {
        step(&mut engine, seq, blocks)?;
    }
    let time = began.elapsed().as_secs_f64();
    Ok(Rates {
        host_to_tier0: (engine.client.stats().bytes_host_to_tier0 - loaded) as f64 / time,
        tier0_to_host,
        nvme_to_host: (counted(daemon, space, "/nvme_to_host/bytes")? - read) as f64 / time,
        host_to_nvme,
    })
}

/// One step over all pages.
fn step(engine: &mut Engine, seq: SeqId, blocks: u64) -> Result<(), BenchError> {
    trying("begin a step", engine.lane.begin(&[StepSeq { seq, tokens: blocks * PAGE_TOKENS }]))?;
    for plane in 0..PLANES as u16 {
        while let Pass::Part { last: false, .. } = trying("cross a boundary", engine.lane.boundary(plane))? {}
    }
    trying("end a step", engine.lane.end())
}

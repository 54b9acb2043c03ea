//! Page faults: a step needs one page that is not in tier 0.

use super::BenchError;
use super::engine::{Engine, PAGE_TOKENS, counted, trying};
use crate::private_daemon::PrivateDaemon;
use kvtide_client::client::{Pass, StepSeq};
use std::time::Instant;

/// Minimum number of page reads.
const SAMPLES: u32 = 4096;
/// Rounds until the order of use is established, every page has its copy and all memory is mapped; not counted.
const WARM_UP: u32 = 2;

/// Read `pages` sequences of one page each in turn, so that the next one is rarely among the `frames` of tier 0. `nvme`: pages must
/// come from NVMe. Return the nanoseconds from a step's begin until its page is readable.
pub(super) fn measure(daemon: &mut PrivateDaemon, frames: u32, pages: u32, nvme: bool) -> Result<Vec<u64>, BenchError> {
    let mut engine = Engine::attach(daemon.socket(), "fault", 1, frames, pages)?;
    let seqs = (0..pages).map(|_| engine.sealed(1)).collect::<Result<Vec<_>, _>>()?;
    let mut from_nvme = || counted(daemon, Some("bench-fault"), "/nvme_to_host/pages");
    let mut samples = Vec::new();
    let rounds = SAMPLES.div_ceil(pages);
    let mut read = 0;
    for round in 0..WARM_UP + rounds {
        if round == WARM_UP {
            read = from_nvme()?;
        }
        for &seq in &seqs {
            let loaded = engine.client.stats().bytes_host_to_tier0;
            let began = Instant::now();
            trying("begin a step", engine.lane.begin(&[StepSeq { seq, tokens: PAGE_TOKENS }]))?;
            let pass = trying("cross a boundary", engine.lane.boundary(0))?;
            let took = began.elapsed().as_nanos() as u64;
            trying("end a step", engine.lane.end())?;
            if !matches!(pass, Pass::Part { count: 1, last: true } | Pass::All) {
                return Err(BenchError::Odd(format!("unexpected pass of a one-page sequence: {pass:?}")));
            }
            if round >= WARM_UP && engine.client.stats().bytes_host_to_tier0 > loaded {
                samples.push(took);
            }
        }
    }
    let read = from_nvme()? - read;
    let (steps, loads) = (u64::from(rounds * pages), samples.len() as u64);
    let elsewhere = if nvme { read * 10 < loads * 8 } else { read > 0 };
    if loads * 4 < steps || elsewhere {
        return Err(BenchError::Odd(format!(
            "{loads} of {steps} steps loaded their page, {read} pages came from NVMe"
        )));
    }
    Ok(samples)
}

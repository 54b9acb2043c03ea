//! Page faults: a step needs one page that is not in tier 0.

use super::super::engine::{Engine, PAGE_TOKENS, trying};
use super::super::{BenchError, percentile};
use super::{TIER0_FRAMES, counted};
use crate::private_daemon::PrivateDaemon;
use kvtide_client::client::{Pass, StepSeq};
use std::time::Instant;

/// Minimum number of page reads.
const SAMPLES: u32 = 4096;

/// Nanoseconds from a step's begin until its page is readable.
pub(super) struct Faults(Vec<u64>);

impl Faults {
    pub(super) fn percentile_us(&mut self, percent: usize) -> f64 {
        percentile(&mut self.0, percent) as f64 / 1000.0
    }
}

/// Read `pages` sequences of one page each in turn, so that the next one is rarely resident. `nvme`: pages must come from NVMe.
pub(super) fn measure(daemon: &mut PrivateDaemon, pages: u32, nvme: bool) -> Result<Faults, BenchError> {
    let space = "bench-fault";
    let mut engine = Engine::attach(daemon.socket(), "fault", 1, TIER0_FRAMES, pages)?;
    let seqs = (0..pages).map(|_| engine.sealed(1)).collect::<Result<Vec<_>, _>>()?;
    let mut samples = Vec::new();
    let rounds = SAMPLES.div_ceil(pages);
    let mut read = 0;
    for round in 0..=rounds {
        // The first round establishes the order of use and is not counted.
        if round == 1 {
            read = counted(daemon, space, "/nvme_to_host/pages")?;
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
            if round > 0 && engine.client.stats().bytes_host_to_tier0 > loaded {
                samples.push(took);
            }
        }
    }
    let read = counted(daemon, space, "/nvme_to_host/pages")? - read;
    let (steps, loads) = (u64::from(rounds * pages), samples.len() as u64);
    let elsewhere = if nvme { read * 10 < loads * 8 } else { read > 0 };
    if loads * 4 < steps || elsewhere {
        return Err(BenchError::Odd(format!(
            "{loads} of {steps} steps loaded their page, {read} pages came from NVMe"
        )));
    }
    Ok(Faults(samples))
}

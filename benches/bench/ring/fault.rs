//! Page faults: a step needs one page that is only in host memory.

use super::super::percentile;
use super::{BenchError, Engine, PAGE_TOKENS, trying};
use kvtide_client::client::{Pass, StepSeq};
use std::path::Path;
use std::time::Instant;

/// Sequences of one page each, read in turn: sixteen times the pages of tier 0, so that the least recently used page is always
/// absent, and 64 MiB, so that host memory is not in a cache.
const SEQS: u32 = 1024;
const FRAMES: u32 = 64;
const ROUNDS: usize = 4;
/// Rounds until every page has its host copy and every host frame is mapped.
const WARM_UP: usize = 2;

/// Return the median nanoseconds from a step's begin until its page is readable.
pub(super) fn measure(socket: &Path) -> Result<u64, BenchError> {
    let mut engine = Engine::attach(socket, "fault", 1, FRAMES, SEQS)?;
    let seqs = (0..SEQS).map(|_| engine.sealed(1)).collect::<Result<Vec<_>, _>>()?;
    let mut samples = Vec::with_capacity(ROUNDS * SEQS as usize);
    for round in 0..WARM_UP + ROUNDS {
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
    if samples.len() < ROUNDS * SEQS as usize / 2 {
        return Err(BenchError::Odd(format!(
            "only {} of {} steps loaded their page",
            samples.len(),
            ROUNDS * SEQS as usize
        )));
    }
    Ok(percentile(&mut samples, 50))
}

//! An engine with one session that serves a trace's requests in order. For each request, it maps the cached prefix, reads it into
//! tier 0, computes the rest, publishes it, and drops the sequence.

use super::super::ReplayError;
use super::super::machine::{Bandwidths, Machine, space};
use super::super::progress::Progress;
use super::super::trace::{Requests, requests::BLOCK_TOKENS};
use kvtide_tiering::api::{Admission, Event, Eviction, Level, Limits, Policy, Request, SpaceConfig, Status};
use kvtide_tiering::evict;

/// Blocks computed at once; a client request holds at most this many hashes.
const CHUNK: usize = 64;
/// Blocks in tier 0: slightly more than a request computes at once.
const TIER0: u32 = CHUNK as u32 + 16;
/// Maximum concurrent jobs of the engine.
const JOBS: u32 = 64;
/// Requests between two progress updates.
const TELL: usize = 64;

/// Settings of a replay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    /// Blocks that fit in host memory.
    pub(super) host: u32,
    /// Blocks that fit on NVMe.
    pub(super) nvme: u32,
    /// Bytes of a block: one page of one plane.
    pub(super) block_bytes: u32,
    pub(super) bandwidths: Bandwidths,
    pub(super) admission: Admission,
    /// Bytes that may be written a day; 0: no limit.
    pub(super) bytes_per_day: u64,
    pub(super) eviction: Eviction,
}

/// Result of a replay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Blocks requested.
    pub(super) asked: u64,
    /// Blocks found as part of a whole cached prefix.
    pub(super) found: u64,
    /// Found blocks that were still in tier 0.
    pub(super) tier0_hits: u64,
    /// Found blocks that were only on NVMe.
    pub(super) nvme_hits: u64,
    /// Blocks written to NVMe.
    pub(super) written: u64,
    /// Blocks dropped unwritten because of the daily write limit.
    pub(super) over_budget: u64,
    /// Hit rate with all blocks written, estimated by the ghost caches, and the bytes a day for it; `None` without enough samples.
    pub(super) advised: Option<(f64, u64)>,
    /// Number of requests.
    pub(super) requests: u64,
    /// Nanoseconds that requests waited for their cached blocks.
    pub(super) load_ns: u64,
}

fn config(setup: Setup, longest: u32) -> SpaceConfig {
    let mut config = space(BLOCK_TOKENS, setup.block_bytes, 1, setup.host + TIER0 + 2 * longest + 64);
    let limits = &mut config.limits;
    limits.seq_blocks_max = longest + 1;
    limits.jobs_max = JOBS;
    limits.host_bytes_max = u64::from(setup.host) * u64::from(setup.block_bytes);
    limits.nvme_bytes_max = u64::from(setup.nvme) * u64::from(setup.block_bytes);
    limits.entries_max = limits.blocks_max + setup.nvme;
    config.policy.nvme_admission = setup.admission;
    config.policy.eviction = setup.eviction;
    config
}

/// Replay a trace.
pub(super) fn replay(trace: &Requests, setup: Setup, what: String) -> Result<Outcome, ReplayError> {
    let config = config(setup, trace.longest());
    let policy = Policy { nvme_bytes_per_day: setup.bytes_per_day, ..config.policy };
    let Limits { host_bytes_max, nvme_bytes_max, .. } = config.limits;
    let machine = Machine::new(config, TIER0, setup.bandwidths)?;
    let mut engine = Engine { machine, steps: 0, outcome: Outcome::default() };
    // Set later, so that the bucket begins empty: the start of a new space would be much of a short trace's budget.
    engine.machine.event(Event::Reconfigure { policy, host_bytes_max, nvme_bytes_max })?;
    let mut progress = Progress::new(what, trace.len() as u64);
    let mut hashes = Vec::new();
    for (number, request) in trace.iter().enumerate() {
        if number % TELL == 0 {
            progress.at(number as u64);
        }
        // A request that arrives while the previous one is still served waits for it.
        let due = request.time_ms.saturating_mul(1_000_000);
        engine.machine.advance(due.max(engine.machine.now_ns()))?;
        hashes.clear();
        hashes.extend(request.blocks.iter().map(|&block| hash_of(block)));
        engine.serve(&hashes)?;
        engine.machine.agent.arrived.clear();
    }
    // Finish the writes to NVMe in progress.
    engine.machine.settle()?;
    let counters = engine.machine.core.counters();
    engine.outcome.written = counters.host_to_nvme.total_pages();
    engine.outcome.nvme_hits = counters.nvme_hits;
    engine.outcome.over_budget = counters.over_budget_drops;
    let advice = engine.machine.core.eviction_advice();
    let span_us = trace.span_ms() * 1000;
    engine.outcome.advised =
        advice.hits().map(|hits| (hits, evict::bytes_per_day(hits, advice.uses, span_us, advice.entry_bytes)));
    Ok(engine.outcome)
}

/// Return a hash for a block of the trace; never 0, which is invalid.
fn hash_of(block: u32) -> u128 {
    let mix = |x: u64| (x ^ x >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    let id = u64::from(block) + 1;
    u128::from(mix(id)) << 64 | u128::from(id)
}

struct Engine {
    machine: Machine,
    steps: u64,
    outcome: Outcome,
}

impl Engine {
    fn serve(&mut self, hashes: &[u128]) -> Result<(), ReplayError> {
        let seq = 0;
        self.machine.must(Request::SeqCreate { seq })?;
        let found = self.find(seq, hashes)?;
        let mut done = found;
        while done < hashes.len() {
            let count = CHUNK.min(hashes.len() - done);
            self.machine.must(Request::Reserve { seq, count: count as u32 })?;
            self.machine.must(Request::Commit { seq, tokens: (done + count) as u64 * u64::from(BLOCK_TOKENS) })?;
            let parent = if done == 0 { 0 } else { hashes[done - 1] };
            let hashes = &hashes[done..done + count];
            let publish = Request::Publish { seq, first: done as u32, parent, hashes, level: Level::Published };
            match self.machine.ask(publish)? {
                // A block that is not cached is computed again by the next request.
                (Status::Ok | Status::NotAdmitted, _) => {}
                (status, _) => return Err(ReplayError::Odd(format!("a publish ends with {status:?}"))),
            }
            done += count;
        }
        // One decode step, so that time advances for the blocks in memory.
        self.steps += 1;
        let (lane, step) = (0, self.steps);
        self.machine.must(Request::Step { lane, step, seqs: &[seq] })?;
        self.machine.must(Request::StepEnd { lane, step })?;
        self.machine.must(Request::SeqDrop { seq })?;
        self.outcome.requests += 1;
        self.outcome.asked += hashes.len() as u64;
        self.outcome.found += found as u64;
        Ok(())
    }

    /// Map and load the cached part of a prefix.
    fn find(&mut self, seq: u32, hashes: &[u128]) -> Result<usize, ReplayError> {
        let mut found = 0;
        for chunk in hashes.chunks(CHUNK) {
            // Nothing of it is cached, or none of it fits.
            let more = match self.machine.ask(Request::AttachPrefix { seq, hashes: chunk, asked: None })? {
                (Status::Ok, more) => more,
                _ => 0,
            };
            found += more as usize;
            if more < chunk.len() as u64 {
                break;
            }
        }
        let (began, loads) = (self.machine.now_ns(), self.machine.agent.loads);
        for first in (0..found).step_by(CHUNK) {
            let (first, count) = (first as u32, CHUNK.min(found - first) as u32);
            self.machine.must(Request::Acquire { seq, plane: 0, planes: 1, first, count })?;
            self.machine.must(Request::Release { seq, plane: 0, planes: 1, first, count })?;
        }
        self.outcome.load_ns += self.machine.now_ns() - began;
        self.outcome.tier0_hits += (found as u64).saturating_sub(self.machine.agent.loads - loads);
        Ok(found)
    }
}

//! Drives one `approx` sequence under memory pressure through the core, and measures the time that the core spends on its attention
//! scores.

use super::super::{BenchError, percentile};
use super::model::{Decoder, Told};
use crate::replay::machine::{Bandwidths, Machine, space};
use kvtide_tiering::api::{Contract, Event, Request, ScoreKind};
use std::time::{Duration, Instant};

/// Bytes of a page: 64 tokens of one layer of an 8B model.
const PAGE_BYTES: u32 = 256 << 10;
const PAGE_TOKENS: u32 = 64;
/// Compute time of a plane, and the link rates below: as in docs/design/prefetch.md.
const PLANE_NS: u64 = 600_000;
const HOST_GBPS: f64 = 25.0;
/// Tier 0 holds 1/`CAPACITY` of all pages; the attention budget is in thousandths.
const CAPACITY: u32 = 8;
const BUDGET_PERMILLE: u16 = 250;
/// Steps of a round: a multiple of the periods of everything that the core does periodically.
const ROUND: u64 = 32;
/// Minimum number of steps before the measurement: the predictor learns from each of a plane's first 64.
const WARM_UP: u64 = 3 * ROUND;
/// Blocks per prefill chunk.
const CHUNK: u32 = 8;

/// Result for one size.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// Nanoseconds per page and plane for all handling of scores in the core.
    pub(super) all: f64,
    /// Loads ordered per plane and step.
    pub(super) loads: f64,
}

/// Nanoseconds, by the step's position in its round.
type Times = [Vec<u64>; ROUND as usize];

struct Engine {
    machine: Machine,
    /// Everything fits in tier 0, so that agents report attention scores only.
    fits: bool,
    decoder: Decoder,
    planes: usize,
    blocks: Vec<u32>,
    read: Vec<bool>,
    told: Told,
    /// Time spent so far by the core.
    core: Duration,
    /// Time of each plane and step, by the step's position in its round.
    each: Times,
}

/// Run `steps` steps (a multiple of [`ROUND`]) of a sequence of `pages` pages, and measure the core's time for their scores.
pub(super) fn measure(planes: usize, pages: u32, steps: u32) -> Result<Cost, BenchError> {
    let mut engine = Engine::new(planes, pages, pages * planes as u32 / CAPACITY)?;
    engine.prefill(pages)?;
    let warm = WARM_UP.max(u64::from(steps / 2));
    for step in 1..=warm {
        engine.step(step)?;
    }
    engine.each = Default::default();
    let before = engine.machine.core.counters().attention_loads;
    for step in warm + 1..=warm + u64::from(steps) {
        engine.step(step)?;
    }
    let loads = engine.machine.core.counters().attention_loads - before;
    if loads == 0 {
        return Err(BenchError::Odd(format!("no page of {pages} was prefetched")));
    }
    let all = usual(&mut engine.each) / f64::from(pages);
    Ok(Cost { all, loads: loads as f64 / f64::from(steps) / planes as f64 })
}

/// Return the core's nanoseconds for a plane's scores where all pages fit. Agents report attention scores only in that case.
pub(super) fn fitting(planes: usize, pages: u32) -> Result<f64, BenchError> {
    const STEPS: u64 = 8 * ROUND;
    let mut engine = Engine::new(planes, pages, 2 * (pages + CHUNK) * planes as u32)?;
    engine.prefill(pages)?;
    for step in 1..=STEPS {
        engine.step(step)?;
    }
    let counters = engine.machine.core.counters();
    if counters.attention_loads > 0 || counters.scores < STEPS * planes as u64 {
        return Err(BenchError::Odd(format!("pages were loaded, or scores are missing: {counters:?}")));
    }
    Ok(usual(&mut engine.each))
}

/// Return the usual time of a plane and step: the mean over the positions in a round of their medians. The medians suppress other
/// load on the machine; the mean includes periodic work.
fn usual(times: &mut Times) -> f64 {
    let medians = times.iter_mut().map(|times| percentile(times, 50));
    medians.sum::<u64>() as f64 / ROUND as f64
}

impl Engine {
    /// Create an engine for a sequence of up to `pages` pages, with `frames` tier-0 frames.
    fn new(planes: usize, pages: u32, frames: u32) -> Result<Engine, BenchError> {
        let machine = Machine::new(
            space(PAGE_TOKENS, PAGE_BYTES, planes, pages + CHUNK),
            frames,
            Bandwidths { host: HOST_GBPS, nvme: 1.0 },
        )?;
        Ok(Engine {
            machine,
            fits: frames >= pages * planes as u32,
            decoder: Decoder::new(planes, pages as usize),
            planes,
            blocks: Vec::with_capacity(pages as usize),
            read: vec![false; pages as usize],
            told: Told::default(),
            core: Duration::ZERO,
            each: Default::default(),
        })
    }

    fn prefill(&mut self, pages: u32) -> Result<(), BenchError> {
        self.machine.must(Request::SeqCreate { seq: 0 })?;
        let contract = Contract::Approx { permille: BUDGET_PERMILLE };
        self.machine.must(Request::Contract { seq: 0, contract })?;
        while (self.blocks.len() as u32) < pages {
            let count = CHUNK.min(pages - self.blocks.len() as u32);
            self.machine.must(Request::Reserve { seq: 0, count })?;
            self.blocks.extend_from_slice(self.machine.list());
            let tokens = self.blocks.len() as u64 * u64::from(PAGE_TOKENS);
            self.machine.must(Request::Commit { seq: 0, tokens })?;
            self.machine.settle()?;
        }
        Ok(())
    }

    fn step(&mut self, step: u64) -> Result<(), BenchError> {
        self.decoder.step();
        self.machine.must(Request::Step { lane: 0, step, seqs: &[0] })?;
        for plane in 0..self.planes {
            let position = Some(step * self.planes as u64 + plane as u64);
            let before = self.core;
            self.machine.at(position)?;
            for (read, block) in self.read.iter_mut().zip(&self.blocks) {
                *read = self.machine.agent.shows(*block, plane as u16);
            }
            if plane + 1 < self.planes && !self.fits {
                self.decoder.estimate(plane + 1, &mut self.told);
                self.tell(step, plane + 1, ScoreKind::Ahead)?;
            }
            self.machine.advance(self.machine.now_ns() + PLANE_NS / 2)?;
            self.machine.at(position)?;
            self.machine.advance(self.machine.now_ns() + PLANE_NS / 2)?;
            if !self.fits {
                self.decoder.estimate(plane, &mut self.told);
                self.tell(step, plane, ScoreKind::Query)?;
            }
            self.decoder.read(plane, &self.read, &mut self.told);
            self.tell(step, plane, ScoreKind::Mass)?;
            self.each[(step % ROUND) as usize].push((self.core - before).as_nanos() as u64);
        }
        self.machine.must(Request::StepEnd { lane: 0, step })?;
        self.machine.at(None)?;
        Ok(())
    }

    fn tell(&mut self, step: u64, plane: usize, kind: ScoreKind) -> Result<(), BenchError> {
        let Told { top, rest, .. } = &self.told;
        let event = Event::Scores { session: 0, seq: 0, plane: plane as u16, step, kind, rest: *rest, top };
        let began = Instant::now();
        self.machine.tell(event)?;
        self.core += began.elapsed();
        Ok(self.machine.drain()?)
    }
}

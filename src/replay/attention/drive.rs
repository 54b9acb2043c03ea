//! An engine that decodes one sequence under `approx`: each plane of each step reads what of it is in tier 0, and tells the core what it
//! read and what it expects to read.

use super::super::ReplayError;
use super::super::machine::{Bandwidths, Machine};
use super::super::progress::Progress;
use super::super::trace::Attention;
use super::baseline::{Oracle, room};
use super::estimates::Estimates;
use super::scores::Scores;
use super::tally::Tally;
use kvtide_tiering::api::Attention as AttentionPolicy;
use kvtide_tiering::api::{
    Admission, Contract, Event, Eviction, Limits, Plane, PlaneKind, Policy, Request, Retention, ScoreKind, SpaceConfig,
};
use kvtide_tiering::predict::{Estimate, Scoring};

/// Blocks that prefill computes at once, at most.
const CHUNK: usize = 4;
/// Sealed pages at the end of a sequence that an engine reads whatever it picks.
const RECENT: usize = 2;
/// Pages of a plane that a step reads whatever it picks: the first, the last sealed ones, the one that is filling.
pub(super) const NEEDED: usize = RECENT + 2;
/// The only sequence, lane and session.
const SEQ: u32 = 0;
const LANE: u16 = 0;
const SESSION: u16 = 0;
/// Steps between two looks at the clock.
const TELL: usize = 8;

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) scoring: Scoring,
    /// Tier 0, in percent of the pages of the step.
    pub(super) capacity_percent: f64,
    /// What a step may read of a plane, in percent of its pages: the budget of the contract.
    pub(super) budget_percent: f64,
    /// Host memory, in percent of all pages; the others are on NVMe.
    pub(super) host_percent: f64,
    pub(super) bandwidths: Bandwidths,
    pub(super) page_bytes: u32,
    /// How long a plane's attention and all that goes with it takes, in nanoseconds.
    pub(super) plane_ns: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) tally: Tally,
    /// Nanoseconds that steps waited.
    pub(super) stall_ns: u64,
    pub(super) steps: u64,
    /// Bytes that went from host memory to tier 0 and from NVMe to host memory while decoding.
    pub(super) loaded_bytes: u64,
    pub(super) read_bytes: u64,
}

fn config(trace: &Attention, setup: Setup) -> SpaceConfig {
    let blocks = trace.pages as u32;
    let planes = trace.planes as u64;
    let block_bytes = u64::from(setup.page_bytes) * planes;
    let share = (f64::from(blocks) * setup.host_percent / 100.0).ceil() as u64;
    let all_in_host = share >= u64::from(blocks);
    SpaceConfig {
        page_tokens: trace.page_tokens as u32,
        planes: vec![Plane { page_bytes: setup.page_bytes, kind: PlaneKind::Full }; trace.planes],
        shards: 1,
        limits: Limits {
            sessions_max: 1,
            blocks_max: blocks + CHUNK as u32,
            seqs_max: 1,
            seq_blocks_max: blocks + 1,
            lanes_max: 1,
            jobs_max: 256,
            requests_max: 4,
            host_bytes_max: (share + CHUNK as u64) * block_bytes,
            nvme_bytes_max: if all_in_host { 0 } else { u64::from(blocks + CHUNK as u32) * block_bytes },
            ios_max: 64,
            contents_max: blocks + CHUNK as u32,
            notes_max: 64,
        },
        policy: policy(setup),
    }
}

fn policy(setup: Setup) -> Policy {
    Policy {
        clean_low_percent: 100,
        clean_high_percent: 100,
        host_high_percent: 100,
        host_low_percent: 100,
        host_clean_low_percent: 10,
        host_clean_high_percent: 20,
        host_scan_frames: 8,
        nvme_high_percent: 100,
        nvme_low_percent: 100,
        nvme_admission: Admission::All,
        nvme_bytes_per_day: 0,
        eviction: Eviction::Lru,
        attention: AttentionPolicy { policy: setup.scoring, ..AttentionPolicy::default() },
        retention: Retention::default(),
        scan_frames: 8,
        request_timeout_us: u64::MAX / 2,
    }
}

/// What is there beside the trace.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) trace: &'a Attention,
    pub(super) oracle: &'a Oracle,
    pub(super) estimates: &'a Estimates,
}

/// Replays a trace.
pub(super) fn replay(known: Known<'_>, setup: Setup, what: &str) -> Result<Outcome, ReplayError> {
    let trace = known.trace;
    let frames = |step: usize| (room(trace, step, setup.capacity_percent) * trace.planes) as u32;
    let machine = Machine::new(config(trace, setup), frames(trace.steps - 1), setup.bandwidths)?;
    let mut engine = Engine {
        machine,
        known,
        setup,
        blocks: Vec::with_capacity(trace.pages),
        tally: Tally::new(trace),
        used_ns: vec![0; trace.planes],
        used: vec![0; trace.planes],
        faulted: Vec::new(),
        scores: Scores::default(),
        read: Vec::new(),
        mass: Vec::new(),
        stall_ns: 0,
    };
    engine.prefill()?;
    let before = *engine.machine.core.counters();
    let mut resident = frames(trace.steps - 1);
    let mut progress = Progress::new(what, trace.steps as u64);
    for step in 0..trace.steps {
        if step % TELL == 0 {
            progress.at(step as u64);
        }
        if frames(step) != resident {
            resident = frames(step);
            engine.machine.must(Request::Tier0Resize { class: 0, frames: resident })?;
        }
        engine.step(step)?;
    }
    engine.arrivals(trace.steps);
    engine.tally.end();
    let now = engine.machine.core.counters();
    let bytes = u64::from(setup.page_bytes);
    Ok(Outcome {
        loaded_bytes: (now.host_to_tier0.total_pages() - before.host_to_tier0.total_pages()) * bytes,
        read_bytes: (now.nvme_to_host.total_pages() - before.nvme_to_host.total_pages()) * bytes,
        tally: engine.tally,
        stall_ns: engine.stall_ns,
        steps: trace.steps as u64,
    })
}

struct Engine<'a> {
    machine: Machine,
    known: Known<'a>,
    setup: Setup,
    /// Block of each page index.
    blocks: Vec<u32>,
    tally: Tally,
    /// When each plane was used last, and at which step.
    used_ns: Vec<u64>,
    used: Vec<usize>,
    /// Pages that a fault brings in: block, plane.
    faulted: Vec<(u32, u16)>,
    scores: Scores,
    read: Vec<bool>,
    mass: Vec<f32>,
    stall_ns: u64,
}

impl Engine<'_> {
    fn prefill(&mut self) -> Result<(), ReplayError> {
        let trace = self.known.trace;
        let permille = (self.setup.budget_percent * 10.0).round().clamp(1.0, 1000.0) as u16;
        self.machine.must(Request::SeqCreate { seq: SEQ })?;
        self.machine.must(Request::Contract { seq: SEQ, contract: Contract::Approx { permille } })?;
        // A reserve's pages are in tier 0 all at once.
        let chunk = CHUNK.min(room(trace, 0, self.setup.capacity_percent) / 2).max(1);
        let mut tokens = 0;
        while tokens < trace.context_start {
            self.grow(chunk.min((trace.context_start - tokens).div_ceil(trace.page_tokens)))?;
            tokens = (self.blocks.len() * trace.page_tokens).min(trace.context_start);
            self.machine.must(Request::Commit { seq: SEQ, tokens: tokens as u64 })?;
            self.machine.settle()?;
        }
        self.machine.agent.arrived.clear();
        Ok(())
    }

    /// More blocks.
    fn grow(&mut self, count: usize) -> Result<(), ReplayError> {
        self.machine.must(Request::Reserve { seq: Some(SEQ), count: count as u32 })?;
        self.blocks.extend_from_slice(self.machine.list());
        Ok(())
    }

    fn step(&mut self, step: usize) -> Result<(), ReplayError> {
        let trace = self.known.trace;
        let pages = trace.pages_at(step);
        let began = self.machine.now_ns();
        if self.blocks.len() < pages {
            self.grow(pages - self.blocks.len())?;
        }
        let number = step as u64 + 1;
        self.machine.must(Request::Step { lane: LANE, step: number, seqs: &[SEQ] })?;
        for plane in 0..trace.planes {
            let position = number * trace.planes as u64 + plane as u64;
            self.machine.at(Some(position))?;
            self.read.clear();
            self.read.resize(pages, false);
            self.wait_for_needed(step, plane, position)?;
            self.look(step, plane);
            let asked = self.setup.scoring.estimate() != Estimate::None;
            if asked && plane + 1 < trace.planes {
                let shares = self.known.estimates.at(step, plane + 1, true, pages);
                self.scores.of(shares);
                self.tell(number, plane + 1, ScoreKind::Ahead)?;
            }
            // Attention, then the rest of the layer; between them the engine looks whether tables have changed.
            let half = self.setup.plane_ns / 2;
            self.machine.advance(self.machine.now_ns() + half)?;
            self.machine.at(Some(position))?;
            self.machine.advance(self.machine.now_ns() + self.setup.plane_ns - half)?;
            if asked {
                self.scores.of(self.known.estimates.at(step, plane, false, pages));
                self.tell(number, plane, ScoreKind::Query)?;
            }
            self.scores.of_read(trace, (step, plane), &self.read);
            self.tell(number, plane, ScoreKind::Mass)?;
        }
        self.machine.must(Request::StepEnd { lane: LANE, step: number })?;
        self.machine.at(None)?;
        self.machine.must(Request::Commit { seq: SEQ, tokens: trace.tokens_at(step) as u64 })?;
        let worked = trace.planes as u64 * self.setup.plane_ns;
        self.stall_ns += (self.machine.now_ns() - began).saturating_sub(worked);
        Ok(())
    }

    /// Waits for what a step reads whatever it picks: the first page, the last sealed ones, the one that is filling.
    fn wait_for_needed(&mut self, step: usize, plane: usize, position: u64) -> Result<(), ReplayError> {
        let pages = self.known.trace.pages_at(step);
        for index in std::iter::once(0).chain(pages.saturating_sub(RECENT + 1)..pages) {
            let (block, plane) = (self.blocks[index], plane as u16);
            if !self.machine.agent.shows(block, plane) {
                self.faulted.push((block, plane));
                // As in passes: what is there is read before the rest is waited for, and may go then.
                self.read_now(usize::from(plane));
                self.machine.agent.has_read();
                let (seq, index) = (SEQ, index as u32);
                self.machine.must(Request::Fault { lane: LANE, use_pos: position, seq, index, plane })?;
                // What was given up for it is out of use at the next boundary: this is one.
                self.machine.at(Some(position))?;
            }
        }
        Ok(())
    }

    /// The moment of use.
    fn look(&mut self, step: usize, plane: usize) {
        self.arrivals(step);
        let Known { trace, oracle, .. } = self.known;
        trace.mass(step, plane, &mut self.mass);
        self.read_now(plane);
        self.tally.used(oracle, (step, plane), &self.read, &self.mass);
        (self.used_ns[plane], self.used[plane]) = (self.machine.now_ns(), step);
    }

    /// Reads what is there of a plane.
    fn read_now(&mut self, plane: usize) {
        for (read, block) in self.read.iter_mut().zip(&self.blocks) {
            *read |= self.machine.agent.shows(*block, plane as u16);
        }
    }

    /// Counts the loads that ended since the last look.
    fn arrivals(&mut self, step: usize) {
        for at in 0..self.machine.agent.arrived.len() {
            let load = self.machine.agent.arrived[at];
            if let Some(fault) = self.faulted.iter().position(|page| *page == (load.block, load.plane)) {
                self.faulted.swap_remove(fault);
                self.tally.demanded += 1;
                continue;
            }
            let Some(index) = self.blocks.iter().position(|block| *block == load.block) else { continue };
            let plane = usize::from(load.plane);
            // It was for the first use after it was ordered; that may be over.
            let last = self.used[plane];
            let late = step > 0 && load.ordered_ns < self.used_ns[plane] && load.ended_ns > self.used_ns[plane];
            let next = if last == step && self.used_ns[plane] > 0 { step + 1 } else { step };
            let meant = if late { last } else { next };
            self.tally.prefetched(self.known.oracle, (meant, plane, index as u32), late);
        }
        self.machine.agent.arrived.clear();
    }

    fn tell(&mut self, step: u64, plane: usize, kind: ScoreKind) -> Result<(), ReplayError> {
        let Scores { top, rest, .. } = &self.scores;
        let (session, seq, plane) = (SESSION, SEQ, plane as u16);
        self.machine.event(Event::Scores { session, seq, plane, step, kind, rest: *rest, top })
    }
}

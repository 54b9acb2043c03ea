//! An engine that decodes one sequence with `approx`. Each plane of each step reads its pages in tier 0, and reports to the core
//! the pages that it read and the pages that it expects to read.

use super::super::ReplayError;
use super::super::progress::Progress;
use super::super::trace::Attention;
use super::baseline::Oracle;
use super::estimates::Estimates;
use super::scores::Scores;
use super::sequence::{LANE, SEQ, SESSION, Sequence, Setup};
use super::stats::Stats;
use kvtide_tiering::api::{Contract, Event, Request, ScoreKind};

/// Last sealed pages of a sequence that an engine always reads.
const RECENT: usize = 2;
/// Pages of a plane that a step always reads: the first, the last sealed ones, and the unsealed one.
pub(super) const NEEDED: usize = RECENT + 2;
/// Steps between two progress updates.
const TELL: usize = 8;

/// Result of a replay.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) stats: Stats,
    /// Nanoseconds that steps waited.
    pub(super) stall_ns: u64,
    pub(super) steps: u64,
    /// Bytes loaded from host memory to tier 0 and from NVMe to host memory while decoding.
    pub(super) loaded_bytes: u64,
    pub(super) read_bytes: u64,
}

/// Data derived from the trace.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) trace: &'a Attention,
    pub(super) oracle: &'a Oracle,
    pub(super) estimates: &'a Estimates,
}

/// Replay a trace.
pub(super) fn replay(known: Known<'_>, setup: Setup) -> Result<Outcome, ReplayError> {
    let trace = known.trace;
    let permille = (setup.budget_percent * 10.0).round().clamp(1.0, 1000.0) as u16;
    let mut engine = Engine {
        sequence: Sequence::prefill(trace, setup, Contract::Approx { permille })?,
        known,
        setup,
        stats: Stats::new(trace),
        used_ns: vec![0; trace.planes],
        used: vec![0; trace.planes],
        faulted: Vec::new(),
        scores: Scores::default(),
        read: Vec::new(),
        mass: Vec::new(),
        stall_ns: 0,
    };
    let before = engine.sequence.moved();
    let mut progress = Progress::new("approx", trace.steps as u64);
    for step in 0..trace.steps {
        if step % TELL == 0 {
            progress.at(step as u64);
        }
        engine.step(step)?;
    }
    engine.arrivals(trace.steps);
    engine.stats.end();
    let now = engine.sequence.moved();
    Ok(Outcome {
        loaded_bytes: now.loaded_bytes - before.loaded_bytes,
        read_bytes: now.read_bytes - before.read_bytes,
        stats: engine.stats,
        stall_ns: engine.stall_ns,
        steps: trace.steps as u64,
    })
}

struct Engine<'a> {
    sequence: Sequence<'a>,
    known: Known<'a>,
    setup: Setup,
    stats: Stats,
    /// Time and step of the last use of each plane.
    used_ns: Vec<u64>,
    used: Vec<usize>,
    /// Pages loaded by a fault: block, plane.
    faulted: Vec<(u32, u16)>,
    scores: Scores,
    read: Vec<bool>,
    mass: Vec<f32>,
    stall_ns: u64,
}

impl Engine<'_> {
    fn step(&mut self, step: usize) -> Result<(), ReplayError> {
        let trace = self.known.trace;
        let pages = trace.pages_at(step);
        let (began, number) = self.sequence.begin(step)?;
        for plane in 0..trace.planes {
            let position = number * trace.planes as u64 + plane as u64;
            self.sequence.machine.at(Some(position))?;
            self.read.clear();
            self.read.resize(pages, false);
            self.wait_for_needed(step, plane, position)?;
            self.look(step, plane);
            if plane + 1 < trace.planes {
                let shares = self.known.estimates.at(step, plane + 1, true, pages);
                self.scores.of(shares);
                self.tell(number, plane + 1, ScoreKind::Ahead)?;
            }
            // Attention, then the rest of the layer. Between them the engine checks for changed page tables.
            let half = self.setup.plane_ns / 2;
            self.sequence.machine.advance(self.sequence.machine.now_ns() + half)?;
            self.sequence.machine.at(Some(position))?;
            self.sequence.machine.advance(self.sequence.machine.now_ns() + self.setup.plane_ns - half)?;
            self.scores.of(self.known.estimates.at(step, plane, false, pages));
            self.tell(number, plane, ScoreKind::Query)?;
            self.scores.of_read(trace, (step, plane), &self.read);
            self.tell(number, plane, ScoreKind::Mass)?;
        }
        self.sequence.end(step)?;
        let worked = trace.planes as u64 * self.setup.plane_ns;
        self.stall_ns += (self.sequence.machine.now_ns() - began).saturating_sub(worked);
        Ok(())
    }

    /// Wait for the pages that a step always reads: the first, the last sealed ones, and the unsealed one.
    fn wait_for_needed(&mut self, step: usize, plane: usize, position: u64) -> Result<(), ReplayError> {
        let pages = self.known.trace.pages_at(step);
        for index in std::iter::once(0).chain(pages.saturating_sub(RECENT + 1)..pages) {
            let (block, plane) = (self.sequence.blocks[index], plane as u16);
            if !self.sequence.machine.agent.shows(block, plane) {
                self.faulted.push((block, plane));
                // As in passes: resident pages are read before the wait, and may be evicted after that.
                self.read_now(usize::from(plane));
                let (seq, index) = (SEQ, index as u32);
                self.sequence.machine.must(Request::Fault {
                    lane: LANE,
                    use_pos: position,
                    seq,
                    index,
                    plane,
                    whole: false,
                })?;
                // Pages evicted for the loads are released at the next boundary, which is here.
                self.sequence.machine.at(Some(position))?;
            }
        }
        Ok(())
    }

    /// Count the pages at the time of use.
    fn look(&mut self, step: usize, plane: usize) {
        self.arrivals(step);
        let Known { trace, oracle, .. } = self.known;
        trace.mass(step, plane, &mut self.mass);
        self.read_now(plane);
        self.stats.used(oracle, (step, plane), &self.read, &self.mass);
        (self.used_ns[plane], self.used[plane]) = (self.sequence.machine.now_ns(), step);
    }

    /// Read the resident pages of a plane.
    fn read_now(&mut self, plane: usize) {
        for (read, block) in self.read.iter_mut().zip(&self.sequence.blocks) {
            *read |= self.sequence.machine.agent.shows(*block, plane as u16);
        }
    }

    /// Count the loads that ended since the last check.
    fn arrivals(&mut self, step: usize) {
        for at in 0..self.sequence.machine.agent.arrived.len() {
            let load = self.sequence.machine.agent.arrived[at];
            if let Some(fault) = self.faulted.iter().position(|page| *page == (load.block, load.plane)) {
                self.faulted.swap_remove(fault);
                self.stats.demanded += 1;
                continue;
            }
            let Some(index) = self.sequence.blocks.iter().position(|block| *block == load.block) else { continue };
            let plane = usize::from(load.plane);
            // A load is for the first use after it was ordered, which may be over.
            let last = self.used[plane];
            let late = step > 0 && load.ordered_ns < self.used_ns[plane] && load.ended_ns > self.used_ns[plane];
            let next = if last == step && self.used_ns[plane] > 0 { step + 1 } else { step };
            let meant = if late { last } else { next };
            self.stats.prefetched(self.known.oracle, (meant, plane, index as u32), late);
        }
        self.sequence.machine.agent.arrived.clear();
    }

    fn tell(&mut self, step: u64, plane: usize, kind: ScoreKind) -> Result<(), ReplayError> {
        let Scores { top, rest, .. } = &self.scores;
        let (session, seq, plane) = (SESSION, SEQ, plane as u16);
        self.sequence.machine.event(Event::Scores { session, seq, plane, step, kind, rest: *rest, top })
    }
}

//! The decoded sequence in its own machine: its size, its prefill, and the begin and end of its steps.

use super::super::ReplayError;
use super::super::machine::{Bandwidths, Machine, space};
use super::super::trace::Attention;
use super::baseline::room;
use kvtide_tiering::api::{Contract, Request, SpaceConfig};

/// The only sequence, lane and session.
pub(super) const SEQ: u32 = 0;
pub(super) const LANE: u16 = 0;
pub(super) const SESSION: u16 = 0;
/// Maximum blocks of a prefill chunk.
const CHUNK: usize = 4;

/// Settings of a replay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    /// Tier 0, in percent of the pages of the step.
    pub(super) capacity_percent: f64,
    /// Budget of the contract: pages of a plane that a step may read, in percent.
    pub(super) budget_percent: f64,
    /// Host memory, in percent of all pages; the others are on NVMe.
    pub(super) host_percent: f64,
    pub(super) bandwidths: Bandwidths,
    pub(super) page_bytes: u32,
    /// Nanoseconds of a plane's attention and the rest of its layer.
    pub(super) plane_ns: u64,
}

/// Moved bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    /// From host memory to tier 0.
    pub(super) loaded_bytes: u64,
    /// From NVMe to host memory.
    pub(super) read_bytes: u64,
}

/// The sequence and its machine.
pub(super) struct Sequence<'a> {
    pub(super) machine: Machine,
    /// Block of each page index.
    pub(super) blocks: Vec<u32>,
    trace: &'a Attention,
    setup: Setup,
    /// Frames of tier 0.
    resident: u32,
}

impl Sequence<'_> {
    /// Create a sequence with its context computed, to be read with `contract`.
    pub(super) fn prefill(trace: &Attention, setup: Setup, contract: Contract) -> Result<Sequence<'_>, ReplayError> {
        let resident = frames(trace, setup, trace.steps - 1);
        let machine = Machine::new(config(trace, setup), resident, setup.bandwidths)?;
        let mut sequence = Sequence { machine, blocks: Vec::with_capacity(trace.pages), trace, setup, resident };
        sequence.machine.must(Request::SeqCreate { seq: SEQ })?;
        sequence.machine.must(Request::Contract { seq: SEQ, contract })?;
        // All pages of a reserve are in tier 0 at the same time.
        let chunk = CHUNK.min(room(trace, 0, setup.capacity_percent) / 2).max(1);
        let mut tokens = 0;
        while tokens < trace.context_start {
            sequence.grow(chunk.min((trace.context_start - tokens).div_ceil(trace.page_tokens)))?;
            tokens = (sequence.blocks.len() * trace.page_tokens).min(trace.context_start);
            sequence.machine.must(Request::Commit { seq: SEQ, tokens: tokens as u64 })?;
            sequence.machine.settle()?;
        }
        sequence.machine.agent.arrived.clear();
        Ok(sequence)
    }

    /// Add blocks.
    fn grow(&mut self, count: usize) -> Result<(), ReplayError> {
        self.machine.must(Request::Reserve { seq: SEQ, count: count as u32 })?;
        self.blocks.extend_from_slice(self.machine.list());
        Ok(())
    }

    /// Begin a step, with the capacity of tier 0 for it. Return the time when its work began, and its number.
    pub(super) fn begin(&mut self, step: usize) -> Result<(u64, u64), ReplayError> {
        let frames = frames(self.trace, self.setup, step);
        if frames != self.resident {
            self.resident = frames;
            self.machine.must(Request::Tier0Resize { class: 0, frames })?;
        }
        let (began, pages, number) = (self.machine.now_ns(), self.trace.pages_at(step), step as u64 + 1);
        if self.blocks.len() < pages {
            self.grow(pages - self.blocks.len())?;
        }
        self.machine.must(Request::Step { lane: LANE, step: number, seqs: &[SEQ] })?;
        Ok((began, number))
    }

    /// End the step.
    pub(super) fn end(&mut self, step: usize) -> Result<(), ReplayError> {
        self.machine.must(Request::StepEnd { lane: LANE, step: step as u64 + 1 })?;
        self.machine.at(None)?;
        self.machine.must(Request::Commit { seq: SEQ, tokens: self.trace.tokens_at(step) as u64 })?;
        Ok(())
    }

    /// Return the bytes moved so far.
    pub(super) fn moved(&self) -> Moved {
        let (counters, bytes) = (self.machine.core.counters(), u64::from(self.setup.page_bytes));
        Moved {
            loaded_bytes: counters.host_to_tier0.total_pages() * bytes,
            read_bytes: counters.nvme_to_host.total_pages() * bytes,
        }
    }
}

/// Return the frames of tier 0 at a step.
pub(super) fn frames(trace: &Attention, setup: Setup, step: usize) -> u32 {
    (room(trace, step, setup.capacity_percent) * trace.planes) as u32
}

fn config(trace: &Attention, setup: Setup) -> SpaceConfig {
    let pages = trace.pages as u32;
    let mut config = space(trace.page_tokens as u32, setup.page_bytes, trace.planes, pages + CHUNK as u32);
    let limits = &mut config.limits;
    limits.seq_blocks_max = pages + 1;
    let share = (f64::from(pages) * setup.host_percent / 100.0).ceil() as u32;
    if share < pages {
        // NVMe has room for everything, host memory for its share.
        limits.nvme_bytes_max = limits.host_bytes_max;
        limits.host_bytes_max = u64::from(share + CHUNK as u32) * u64::from(setup.page_bytes) * trace.planes as u64;
    }
    config
}

//! The same sequence with `exact`: every step reads every page of every plane, in waves, as pages arrive. The moved bytes are
//! compared with the minimum for a cyclic scan.

use super::super::ReplayError;
use super::super::machine::SCAN_FRAMES;
use super::super::progress::Progress;
use super::super::trace::Attention;
use super::sequence::{LANE, SEQ, Sequence, Setup, frames};
use crate::scan;
use kvtide_tiering::api::{Contract, Request, Status};

/// Maximum number of consecutive checks without a new page; more indicates an endless loop in the core.
const ROUNDS_MAX: u32 = 1 << 16;
/// Steps between two progress updates.
const TELL: usize = 8;

/// Result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Exact {
    /// Bytes loaded from host memory to tier 0 while decoding.
    pub(super) bytes: u64,
    /// Minimum of these: all pages that do not fit, at every step.
    pub(super) optimum_bytes: u64,
    /// Bytes read from NVMe to host memory.
    pub(super) nvme_read_bytes: u64,
    /// Microseconds that steps waited, per token.
    pub(super) stall_us_per_token: f64,
}

impl Exact {
    /// Return the moved bytes divided by the minimum; 1 if both are 0.
    pub(super) fn ratio(&self) -> f64 {
        match (self.bytes, self.optimum_bytes) {
            (0, 0) => 1.0,
            (bytes, optimum) => bytes as f64 / optimum as f64,
        }
    }
}

/// Replay a trace. Only its sizes matter.
pub(super) fn replay(trace: &Attention, setup: Setup) -> Result<Exact, ReplayError> {
    let mut engine = Engine {
        sequence: Sequence::prefill(trace, setup, Contract::Exact)?,
        trace,
        setup,
        read: Vec::new(),
        index_of: Vec::new(),
        known: 0,
        still: false,
        stall_ns: 0,
    };
    let before = engine.sequence.moved();
    let mut progress = Progress::new("exact", trace.steps as u64);
    for step in 0..trace.steps {
        if step % TELL == 0 {
            progress.at(step as u64);
        }
        engine.step(step)?;
    }
    let now = engine.sequence.moved();
    let excess = |step: usize| {
        let pages = (trace.pages_at(step) * trace.planes) as u64;
        scan::excess(pages, &[(frames(trace, setup, step), SCAN_FRAMES)])
    };
    Ok(Exact {
        bytes: now.loaded_bytes - before.loaded_bytes,
        optimum_bytes: (0..trace.steps).map(excess).sum::<u64>() * u64::from(setup.page_bytes),
        nvme_read_bytes: now.read_bytes - before.read_bytes,
        stall_us_per_token: engine.stall_ns as f64 / trace.steps as f64 / 1000.0,
    })
}

struct Engine<'a> {
    sequence: Sequence<'a>,
    trace: &'a Attention,
    setup: Setup,
    /// Pages of the plane that were read.
    read: Vec<bool>,
    /// Page index of each block.
    index_of: Vec<u32>,
    /// Number of blocks in `index_of`.
    known: usize,
    /// Nothing was in progress at the last boundary.
    still: bool,
    stall_ns: u64,
}

impl Engine<'_> {
    fn step(&mut self, step: usize) -> Result<(), ReplayError> {
        let (began, number) = self.sequence.begin(step)?;
        self.learn_blocks();
        for plane in 0..self.trace.planes {
            self.read.clear();
            self.read.resize(self.trace.pages_at(step), false);
            self.attend(plane, number * self.trace.planes as u64 + plane as u64)?;
            // The rest of the layer.
            self.work(self.setup.plane_ns - self.setup.plane_ns / 2)?;
        }
        self.sequence.end(step)?;
        let worked = self.trace.planes as u64 * self.setup.plane_ns;
        self.stall_ns += (self.sequence.machine.now_ns() - began).saturating_sub(worked);
        Ok(())
    }

    fn work(&mut self, ns: u64) -> Result<(), ReplayError> {
        self.sequence.machine.pass(self.sequence.machine.now_ns() + ns)
    }

    /// Run a plane's attention, which takes half of its time: one wave for the pages found at each boundary, until all are read.
    fn attend(&mut self, plane: usize, position: u64) -> Result<(), ReplayError> {
        let (pages, mut left, mut asked, mut vain) = (self.read.len() as u64, self.read.len() as u64, false, 0);
        while vain < ROUNDS_MAX {
            self.sequence.machine.at(Some(position))?;
            let found = if left == pages { self.find_all(plane) } else { self.find_arrived(plane) };
            vain = if found == 0 { vain + 1 } else { 0 };
            if found > 0 {
                // Waves are rounded so that their total is the plane's time.
                let done = |left: u64| self.setup.plane_ns / 2 * (pages - left) / pages;
                let ns = done(left - found) - done(left);
                left -= found;
                self.work(ns)?;
            }
            if left == 0 {
                return Ok(());
            }
            if found == 0 {
                asked = self.wait(plane, position, asked)?;
            }
        }
        Err(ReplayError::Odd(format!("plane {plane} never gets {left} of {pages} pages")))
    }

    fn learn_blocks(&mut self) {
        for (index, &block) in self.sequence.blocks.iter().enumerate().skip(self.known) {
            let at = block as usize;
            self.index_of.resize(self.index_of.len().max(at + 1), 0);
            self.index_of[at] = index as u32;
        }
        self.known = self.sequence.blocks.len();
    }

    /// Mark resident pages before the first read. Return their number.
    fn find_all(&mut self, plane: usize) -> u64 {
        let Sequence { machine, blocks, .. } = &mut self.sequence;
        machine.agent.arrived.clear();
        for (read, block) in self.read.iter_mut().zip(blocks) {
            *read = machine.agent.shows(*block, plane as u16);
        }
        self.read.iter().filter(|read| **read).count() as u64
    }

    /// Mark pages that have arrived since, so that the cost is linear in the pages of a plane. Return their number.
    fn find_arrived(&mut self, plane: usize) -> u64 {
        let agent = &mut self.sequence.machine.agent;
        let mut found = 0;
        for at in 0..agent.arrived.len() {
            let (block, of) = (agent.arrived[at].block, agent.arrived[at].plane);
            if usize::from(of) != plane || !agent.shows(block, of) {
                continue;
            }
            let index = self.index_of.get(block as usize).map_or(usize::MAX, |index| *index as usize);
            if let Some(read) = self.read.get_mut(index).filter(|read| !**read) {
                *read = true;
                found += 1;
            }
        }
        agent.arrived.clear();
        found
    }

    /// Request the first missing page, unless one was already `asked` for, and wait for the next event.
    fn wait(&mut self, plane: usize, position: u64, asked: bool) -> Result<bool, ReplayError> {
        let machine = &mut self.sequence.machine;
        let asked = match machine.answer().filter(|_| asked) {
            None => asked,
            Some((Status::Ok, _)) => false,
            Some((status, _)) => return Err(ReplayError::Odd(format!("a fault ends with {status:?}"))),
        };
        let missing = if asked { None } else { self.read.iter().position(|read| !read) };
        if let Some(index) = missing {
            let (seq, index, plane) = (SEQ, index as u32, plane as u16);
            machine.send(Request::Fault { lane: LANE, use_pos: position, seq, index, plane, whole: false })?;
        }
        // The next boundary may start a copy, so that one check without anything in progress is allowed.
        let moves = machine.answer().is_some() || machine.wait_for_moves()?;
        if !moves && self.still {
            return Err(ReplayError::Odd(format!("no transfer is left, but plane {plane} lacks pages")));
        }
        self.still = !moves;
        Ok(true)
    }
}

//! A sequence that is decoded with a contract other than exact: pages that the lane selects are read; the others are masked.
//!
//! A plain array has the same KV, which attention never reads. The skipped attention is computed from it afterwards, and the time
//! for this is recorded separately.

use std::time::{Duration, Instant};

use kvtide_client::{Contract, DigestOptions, Element, KeyLayout, Omission, Pass};
use kvtide_wire::digest::sketch;
use serde::{Deserialize, Serialize};
use zerocopy::FromBytes;

use super::sequence::{Sequence, SessionSpec};
use super::{Kv, KvStore, Plain, Rows, TieredError};
use crate::demo::attention::{
    HEAD_DIM, HeadPage, KV_HEADS, PAGE_TOKENS, Page, Partial, Partials, Q_HEADS, TILE, merge, pages_of, split,
};

/// Skipped pages and attention, over all decode steps and planes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Omitted {
    /// Planes of steps examined.
    pub planes: u64,
    /// Pages needed with the contract `exact`.
    pub needed: u64,
    /// Needed pages that were not read.
    pub omitted: u64,
    /// Skipped pages that were selected but not loaded in time.
    pub waived: u64,
    /// Sum of the agent's estimates of their share of attention.
    pub said: f64,
    /// Sum of their measured share, averaged over query heads.
    pub truth: f64,
    /// Sum of the agent's figure for the worst query head of each plane and step.
    pub worst_said: f64,
    /// Sum of the measured share of that head.
    pub worst_truth: f64,
    /// Maximum share lost by one query head in one plane and step.
    pub worst: f64,
    /// Planes of steps in which one query head lost more than half.
    pub mostly_omitted: u64,
}

impl Omitted {
    /// Add one plane of one step: the agent's figures, and the measured share that each query head lost.
    pub(super) fn add(&mut self, said: Omission, lost: &[f64; Q_HEADS]) {
        let mean = lost.iter().sum::<f64>() / Q_HEADS as f64;
        let worst = lost.iter().copied().fold(0.0, f64::max);
        self.planes += 1;
        self.needed += u64::from(said.needed);
        self.omitted += u64::from(said.omitted);
        self.waived += u64::from(said.waived);
        self.said += f64::from(said.share);
        self.truth += mean;
        self.worst_said += f64::from(said.worst);
        self.worst_truth += worst;
        self.worst = self.worst.max(worst);
        self.mostly_omitted += u64::from(worst > 0.5);
    }
}

/// One sequence in one session.
pub struct Contracted {
    pub(super) sequence: Sequence,
    contract: Contract,
    /// Report look-aheads and attention.
    prefetch: bool,
    /// Decoding has begun, so the contract is in force.
    inexact: bool,
    shadow: Plain,
    /// Pages of the plane that were read.
    read: Vec<bool>,
    masses: Vec<f32>,
    cells: Vec<Partial>,
    omitted: Omitted,
    audit: Duration,
}

/// Return the layout of keys in a [`Page`].
fn key_layout() -> KeyLayout {
    const FLOAT: u32 = size_of::<f32>() as u32;
    KeyLayout {
        element: Element::F32,
        heads: KV_HEADS as u16,
        channels: HEAD_DIM as u16,
        tile_tokens: TILE as u16,
        offset: std::mem::offset_of!(HeadPage, keys) as u32,
        head_stride: size_of::<HeadPage>() as u32,
        tile_stride: (TILE * HEAD_DIM) as u32 * FLOAT,
        token_stride: FLOAT,
        channel_stride: TILE as u32 * FLOAT,
    }
}

/// Return the digests of `pages` pages for a contract that needs them, on a device or the host: sketches of 5 % of a half-precision
/// page.
#[must_use]
pub fn digests(contract: Contract, pages: usize, on_device: bool) -> Option<DigestOptions> {
    if contract == Contract::Exact {
        return None;
    }
    let groups = sketch::groups(HEAD_DIM, PAGE_TOKENS, 2 * size_of::<u16>() * HEAD_DIM) as u16;
    let keys = if on_device { super::device::key_layout() } else { key_layout() };
    Some(DigestOptions { keys, pages: pages as u32, groups })
}

impl Contracted {
    /// Attach; `pages` is the maximum of the sequence per plane.
    ///
    /// # Errors
    /// The daemon cannot be reached or refuses, or the plain array cannot be allocated.
    pub fn attach(spec: SessionSpec, contract: Contract, pages: usize) -> Result<Contracted, TieredError> {
        let (planes, prefetch) = (spec.planes, spec.prefetch);
        let shadow = Plain::new(planes, pages * PAGE_TOKENS).map_err(TieredError::Shadow)?;
        Ok(Contracted {
            sequence: Sequence::attach(spec)?,
            contract,
            prefetch,
            inexact: false,
            shadow,
            read: Vec::with_capacity(pages),
            masses: Vec::with_capacity(pages),
            cells: vec![Partial::EMPTY; Q_HEADS],
            omitted: Omitted::default(),
            audit: Duration::ZERO,
        })
    }

    /// Return the totals of skipped pages and attention.
    #[must_use]
    pub fn omitted(&self) -> Omitted {
        self.omitted
    }

    fn write(&mut self, plane: usize, rows: &Rows<'_>) -> Result<(), TieredError> {
        let width = KV_HEADS * HEAD_DIM;
        for (t, (k, v)) in rows.k.chunks_exact(width).zip(rows.v.chunks_exact(width)).enumerate() {
            let (index, slot) = ((rows.start + t) / PAGE_TOKENS, (rows.start + t) % PAGE_TOKENS);
            let page = self.sequence.lane.page_mut(self.sequence.id(), index as u32, plane as u16);
            let page = page.and_then(|bytes| Page::mut_from_bytes(bytes).ok());
            page.ok_or(TieredError::Page { what: "writable", plane, index })?.write(slot, k, v);
            let began = Instant::now();
            let Ok(shadow) = self.shadow.tail(plane, index);
            shadow.write(slot, k, v);
            self.audit += began.elapsed();
        }
        Ok(())
    }

    /// Read one page from the lane.
    fn show(
        &mut self,
        plane: usize,
        index: usize,
        rows: &Rows<'_>,
        partials: &mut Partials,
    ) -> Result<(), TieredError> {
        let page = self.sequence.lane.page(self.sequence.id(), index as u32, plane as u16);
        let page = page.and_then(|bytes| Page::ref_from_bytes(bytes).ok());
        let page = page.ok_or(TieredError::Page { what: "readable", plane, index })?;
        split(&page.heads, index, rows.q, rows.start, partials.page_mut(index));
        self.read[index] = true;
        Ok(())
    }

    /// Read all pages of the lane, until the plane is complete.
    fn visit(&mut self, plane: usize, rows: &Rows<'_>, partials: &mut Partials) -> Result<(), TieredError> {
        loop {
            let last = match self.sequence.lane.boundary(plane as u16)? {
                Pass::All => {
                    (0..self.read.len()).try_for_each(|index| self.show(plane, index, rows, partials))?;
                    return Ok(());
                }
                Pass::Part { last, .. } => last,
            };
            for at in 0..self.sequence.lane.ready().len() {
                let index = self.sequence.lane.ready()[at].index as usize;
                self.show(plane, index, rows, partials)?;
            }
            if last {
                return Ok(());
            }
        }
    }

    /// Return, for each query head, the logarithm of the sum over the pages read.
    fn sums(&self, partials: &Partials) -> [f32; Q_HEADS] {
        std::array::from_fn(|head| {
            let read = || self.read.iter().enumerate().filter(|(_, read)| **read).map(|(index, _)| index);
            let max = read().map(|index| partials.page(index)[head].max).fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = read().map(|i| (partials.page(i)[head].max - max).exp() * partials.page(i)[head].sum).sum();
            max + sum.ln()
        })
    }

    /// Report the step's attention over the pages read to the agent.
    fn tell(&mut self, plane: usize, partials: &Partials) -> Result<(), TieredError> {
        let sums = self.sums(partials);
        self.masses.clear();
        for (index, read) in self.read.iter().enumerate() {
            let share = |head: usize| {
                let cell = &partials.page(index)[head];
                (cell.max - sums[head]).exp() * cell.sum
            };
            let mean = || (0..Q_HEADS).map(share).sum::<f32>() / Q_HEADS as f32;
            self.masses.push(if *read { mean() } else { f32::NAN });
        }
        self.sequence.lane.sums(self.sequence.id(), plane as u16, &sums)?;
        Ok(self.sequence.lane.mass(self.sequence.id(), plane as u16, &self.masses)?)
    }

    /// Compare the agent's figures for the skipped pages with the plain array.
    fn audit(&mut self, plane: usize, rows: &Rows<'_>, partials: &Partials) {
        let began = Instant::now();
        let sums = self.sums(partials);
        let omission = self.sequence.lane.omission(self.sequence.id(), plane as u16).unwrap_or_default();
        let (read, cells) = (&self.read, &mut self.cells);
        let mut lost = [0.0f64; Q_HEADS];
        let Ok(()) = self.shadow.visit(plane, |index, page| {
            if read[index] {
                return;
            }
            split(&page.heads, index, rows.q, rows.start, cells);
            for ((lost, cell), sum) in lost.iter_mut().zip(&*cells).zip(&sums) {
                *lost += f64::from(cell.sum) * (f64::from(cell.max) - f64::from(*sum)).exp();
            }
        });
        self.omitted.add(omission, &lost.map(|lost| lost / (1.0 + lost)));
        self.audit += began.elapsed();
    }
}

impl Kv for Contracted {
    type Error = TieredError;

    fn open(&mut self, tokens: usize) -> Result<(), TieredError> {
        let before = self.sequence.tokens();
        if !self.inexact && before > 0 && tokens == before + 1 {
            self.sequence.contract(self.contract)?;
            self.inexact = true;
        }
        let step = self.sequence.prepare(tokens)?;
        self.sequence.lane.begin(&[step])?;
        let Ok(()) = self.shadow.begin(tokens);
        Ok(())
    }

    fn wants_ahead(&mut self) -> Result<bool, TieredError> {
        Ok(self.prefetch && self.sequence.lane.wants_ahead(self.sequence.id())?)
    }

    fn ahead(&mut self, plane: usize, queries: &[f32]) -> Result<(), TieredError> {
        Ok(self.sequence.lane.ahead(self.sequence.id(), plane as u16, queries)?)
    }

    fn attend(
        &mut self,
        plane: usize,
        rows: Rows<'_>,
        partials: &mut Partials,
        out: &mut [f32],
    ) -> Result<(), TieredError> {
        self.write(plane, &rows)?;
        partials.begin(rows.k.len() / (KV_HEADS * HEAD_DIM));
        self.read.clear();
        self.read.resize(pages_of(self.sequence.tokens()), false);
        if self.inexact {
            self.sequence.lane.query(self.sequence.id(), plane as u16, rows.q)?;
        }
        self.visit(plane, &rows, partials)?;
        for (index, _) in self.read.iter().enumerate().filter(|(_, read)| !**read) {
            partials.page_mut(index).fill(Partial::EMPTY);
        }
        merge(partials, rows.start, out);
        if self.inexact {
            if self.prefetch && self.sequence.lane.wants_mass(self.sequence.id())? {
                self.tell(plane, partials)?;
            }
            self.audit(plane, &rows, partials);
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), TieredError> {
        self.sequence.end()
    }

    fn apart(&self) -> Duration {
        self.audit
    }
}

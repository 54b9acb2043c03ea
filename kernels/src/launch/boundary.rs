//! Boundaries of a lane.

use super::check;
use crate::params::{BoundaryApplyParams, BoundaryGateParams, BoundaryTablesParams, GateOpenParams};
use crate::{Device, Function, Result, Shape, Source, Stream};
use std::sync::Arc;

static SOURCE: Source = Source { name: "boundary", ptx: include_str!("../../ptx/boundary.ptx") };
const THREADS: u32 = 256;
/// Block tables hold frame numbers as i32.
const FRAMES_MAX: u64 = i32::MAX as u64;

/// The kernels of boundaries on a device.
#[derive(Debug)]
pub struct Boundary {
    apply: Function,
    tables: Function,
    gate_open: Function,
    gate: Function,
}

impl Boundary {
    /// Load the kernels.
    ///
    /// # Errors
    /// The driver rejects them; the device is full or lost.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let module = device.module(&SOURCE)?;
        Ok(Self {
            apply: module.function("boundary_apply")?,
            tables: module.function("boundary_tables")?,
            gate_open: module.function("gate_open")?,
            gate: module.function("boundary_gate")?,
        })
    }

    /// Apply updates of a ring to a table, in order. The table may be any table of u32, because entries are not interpreted.
    ///
    /// # Errors
    /// An address is 0 or not aligned; the ring is not a power of two, or shorter than the updates to apply; the device is lost.
    ///
    /// # Safety
    /// Until it has ended: the ring, the words and the table exist, nothing else writes the table, and nothing writes those slots
    /// of the ring, nor the words once the stream may run it.
    pub unsafe fn apply(&self, stream: &Stream, params: &BoundaryApplyParams) -> Result<()> {
        let p = params;
        if p.words == 0 && p.count == 0 {
            return Ok(());
        }
        check::address("page table", p.table, 4)?;
        check::address("updates", p.updates, 8)?;
        check::aligned("words of the boundary", p.words, 16)?;
        check::aligned("status word", p.status, 4)?;
        check::within("slots of the ring, a power of two", u64::from(p.mask.wrapping_add(1).count_ones()), 1, 1)?;
        check::within("updates of a boundary", u64::from(p.count), 0, u64::from(p.mask) + 1)?;
        // SAFETY: checked above; the caller guarantees the rest.
        unsafe { self.apply.launch(stream, Shape::linear(1, THREADS), p) }
    }

    /// Begin a gated step, outside of graphs.
    ///
    /// # Errors
    /// The address is 0 or not aligned; the device is lost.
    ///
    /// # Safety
    /// The state exists until it has ended, and only kernels of this stream access it.
    pub unsafe fn open_gates(&self, stream: &Stream, params: &GateOpenParams) -> Result<()> {
        check::address("state of the gates", params.state, 8)?;
        // SAFETY: checked above; the caller guarantees the rest.
        unsafe { self.gate_open.launch(stream, Shape::linear(1, 1), params) }
    }

    /// Wait, in the stream or in a graph that is being captured, for a plane of the gated step, and apply its updates.
    ///
    /// # Errors
    /// An address is 0 or not aligned; the ring or the slots are not a power of two; there is no such plane; the device is lost.
    ///
    /// # Safety
    /// Until it has ended, in every replay of a graph too: the memory exists; nothing else writes the table; the host writes a
    /// plane's words and its part of the ring only before it stores the step's number to the plane's word.
    pub unsafe fn gate(&self, stream: &Stream, params: &BoundaryGateParams) -> Result<()> {
        let p = params;
        check::address("state of the gates", p.state, 8)?;
        check::address("words of the gates", p.words, 16)?;
        check::address("page table", p.table, 4)?;
        check::address("updates", p.updates, 8)?;
        check::aligned("status word", p.status, 4)?;
        check::within("slots of the ring, a power of two", u64::from(p.mask.wrapping_add(1).count_ones()), 1, 1)?;
        check::within("slots of words, a power of two", u64::from(p.slots_mask.wrapping_add(1).count_ones()), 1, 1)?;
        check::within("plane", u64::from(p.plane) + 1, 1, u64::from(p.planes))?;
        // SAFETY: checked above; the caller guarantees the rest.
        unsafe { self.gate.launch(stream, Shape::linear(1, THREADS), p) }
    }

    /// Build block tables and miss bits of a batch.
    ///
    /// # Errors
    /// An address is 0 or not aligned; a number is out of its bounds; there is no output; the device is lost.
    ///
    /// # Safety
    /// Until it has ended: the memory it reads and writes exists in the sizes given by the parameters; nothing else writes it.
    pub unsafe fn tables(&self, stream: &Stream, params: &BoundaryTablesParams) -> Result<()> {
        let p = params;
        if p.seqs == 0 || p.max_blocks == 0 || p.plane_count == 0 {
            return Ok(());
        }
        check::table(p.table, p.blocks, p.planes, p.plane, p.plane_count)?;
        check::address("block ids", p.block_ids, 4)?;
        check::address("lengths", p.lengths, 4)?;
        check::aligned("starts", p.starts, 4)?;
        check::aligned("block tables", p.block_tables, 4)?;
        check::aligned("miss bits", p.misses, 4)?;
        check::aligned("status word", p.status, 4)?;
        check::address("block tables or miss bits", p.block_tables | p.misses, 4)?;
        check::within("tokens of a page", u64::from(p.page_tokens), 1, u64::from(u32::MAX))?;
        check::within("first frame", u64::from(p.first_frame), 0, FRAMES_MAX)?;
        // Indices and words are counted in u32, up to a warp beyond the last.
        let words = u64::from(p.seqs) * u64::from(p.max_blocks.div_ceil(32));
        check::within("words of miss bits", words, 1, FRAMES_MAX)?;
        let blocks = check::grid("words of miss bits", words.div_ceil(u64::from(THREADS / 32)))?;
        // SAFETY: checked above; the caller guarantees the rest.
        unsafe { self.tables.launch(stream, Shape::linear(blocks, THREADS), p) }
    }
}

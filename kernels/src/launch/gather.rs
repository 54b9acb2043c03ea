//! Copies by the multiprocessors.

use super::check;
use crate::params::{CopyListParams, GatherLayout, GatherParams};
use crate::{Device, Function, Result, Shape, Source, Stream};
use std::sync::Arc;

static SOURCE: Source = Source { name: "gather", ptx: include_str!("../../ptx/gather.ptx") };
const THREADS: u32 = 256;
/// Bytes that a warp moves at a time.
pub const COPY_PIECE: u32 = 4096;
/// The kernels count pieces in u32 and exceed the end by less than a grid.
const PIECES_MAX: u64 = (1 << 32) - (1 << 20);
/// Maximum blocks of a launch: 64 warps per multiprocessor on more multiprocessors than exist.
const BLOCKS_MAX: u32 = 4096;

/// The kernels `copy_list` and `gather` on a device.
#[derive(Debug)]
pub struct Gather {
    copy_list: Function,
    gather: Function,
}

impl Gather {
    /// Load the kernels.
    ///
    /// # Errors
    /// The driver rejects them; the device is full or lost.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let module = device.module(&SOURCE)?;
        Ok(Self { copy_list: module.function("copy_list")?, gather: module.function("gather")? })
    }

    /// Copy a list of fragments, none longer than `bytes_max`, by at most `blocks` blocks.
    ///
    /// # Errors
    /// An address is 0 or not aligned; there are too many pieces; the device is lost.
    ///
    /// # Safety
    /// Until it has ended: the list and the fragments exist; nothing else writes the list or the sources, nothing accesses the
    /// targets. No fragment is longer than given, and none overlaps the target of another one.
    pub unsafe fn copy_list(
        &self,
        stream: &Stream,
        fragments: u64,
        count: u32,
        bytes_max: u32,
        blocks: u32,
    ) -> Result<()> {
        if count == 0 || bytes_max == 0 {
            return Ok(());
        }
        check::address("list of fragments", fragments, 8)?;
        check::within("blocks", u64::from(blocks), 1, u64::from(BLOCKS_MAX))?;
        let pieces = bytes_max.div_ceil(COPY_PIECE);
        let total = u64::from(count) * u64::from(pieces);
        check::within("pieces of a copy", total, 1, PIECES_MAX)?;
        let params = CopyListParams { fragments, count, pieces };
        let blocks = u64::from(blocks).min(total) as u32;
        // SAFETY: checked above; the caller guarantees the rest.
        unsafe { self.copy_list.launch(stream, Shape::linear(blocks, THREADS), &params) }
    }

    /// Copy blocks from one layout into another by at most `blocks` blocks; the call chooses `heads_inner` for the target's layout.
    ///
    /// # Errors
    /// An address or stride is 0 or not aligned; a number is out of its bounds; the device is lost.
    ///
    /// # Safety
    /// Until it has ended: lists, bases and rows exist; nothing else writes the memory it reads or accesses the memory it writes.
    pub unsafe fn gather(&self, stream: &Stream, params: &GatherParams, blocks: u32) -> Result<()> {
        let mut p = *params;
        if [p.count, p.layers, p.parts, p.heads, p.tokens].contains(&0) {
            return Ok(());
        }
        layout(&p.from)?;
        layout(&p.to)?;
        check::address("list of blocks", p.items, 16)?;
        check::aligned("status word", p.status, 4)?;
        check::within("parts", u64::from(p.parts), 1, 2)?;
        check::aligned("bytes of a row", u64::from(p.row_bytes), 16)?;
        check::within("bytes of a row", u64::from(p.row_bytes), 16, u64::from(u32::MAX))?;
        check::within("blocks", u64::from(blocks), 1, u64::from(BLOCKS_MAX))?;
        let rows = u128::from(p.heads) * u128::from(p.tokens);
        let vectors = u64::try_from(rows * u128::from(p.row_bytes / 16)).unwrap_or(u64::MAX);
        check::within("vectors of a part", vectors, 1, PIECES_MAX)?;
        check::within("layers", u64::from(p.layers), 1, u64::from(u32::MAX / 2))?;
        p.heads_inner = u32::from(p.to.head_stride < p.to.token_stride);
        let parts = u64::from(p.count) * u64::from(p.layers) * u64::from(p.parts);
        let pieces = parts.saturating_mul(vectors.div_ceil(u64::from(COPY_PIECE / 16)));
        let blocks = u64::from(blocks).min(pieces) as u32;
        // SAFETY: checked above; the caller guarantees the rest.
        unsafe { self.gather.launch(stream, Shape::linear(blocks, THREADS), &p) }
    }
}

/// Check the alignment of a layout's numbers; the caller guarantees that of its bases and offsets.
fn layout(layout: &GatherLayout) -> Result<()> {
    check::address("bases of a layout", layout.bases, 8)?;
    check::aligned("stride of heads", layout.head_stride, 16)?;
    check::aligned("stride of tokens", layout.token_stride, 16)
}

//! Append new tokens to their pages.

use super::check;
use crate::params::{AppendParams, AppendPart};
use crate::{Device, Error, Function, Result, Shape, Source, Stream};
use std::sync::Arc;

static SOURCE: Source = Source { name: "append", ptx: include_str!("../../ptx/append.ptx") };
const THREADS: u32 = 256;
/// Maximum rows of a CTA.
const ROWS_MAX: u64 = 64;
/// Vectors of 16 bytes that a CTA moves at a time.
const SWEEP: u64 = 4 * THREADS as u64;

/// The kernel `append` on a device.
#[derive(Debug)]
pub struct Append {
    append: Function,
    multiprocessors: u64,
}

impl Append {
    /// Load the kernel.
    ///
    /// # Errors
    /// The driver rejects it; the device is full or lost.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let append = device.module(&SOURCE)?.function("append")?;
        Ok(Self { append, multiprocessors: u64::from(device.info().multiprocessors) })
    }

    /// Write the rows; the call chooses `rows_per_cta`.
    ///
    /// # Errors
    /// An address or stride is 0 or not aligned; a part does not fit into a page; a number is out of its bounds; the device is
    /// lost.
    ///
    /// # Safety
    /// Until it has ended: the memory it reads and writes exists in the sizes given by the parameters; nothing else writes the
    /// sources, the batch, or the targets of the new rows, and nothing reads those targets.
    pub unsafe fn append(&self, stream: &Stream, params: &AppendParams) -> Result<()> {
        let mut p = *params;
        let vectors: u64 = p.parts.iter().map(vectors).sum();
        if p.rows == 0 || vectors == 0 {
            return Ok(());
        }
        check::table(p.table, p.blocks, p.planes, p.plane, 1)?;
        check::address("block ids", p.block_ids, 4)?;
        check::address("lengths", p.lengths, 4)?;
        check::aligned("starts", p.starts, 4)?;
        check::aligned("status word", p.status, 4)?;
        check::aligned("count of faults", p.faults, 4)?;
        check::address("pages", p.pages, 16)?;
        check::aligned("stride of frames", p.stride, 16)?;
        check::within("tokens of a page", u64::from(p.page_tokens), 1, u64::from(u32::MAX))?;
        check::within("columns of the block ids", u64::from(p.max_blocks), 1, u64::from(u32::MAX))?;
        // Rows are compared with i32 starts.
        check::within("rows", u64::from(p.rows), 1, i32::MAX as u64)?;
        let seqs_min = if p.starts == 0 { u64::from(p.rows) } else { 1 };
        check::within("sequences", u64::from(p.seqs), seqs_min, i32::MAX as u64)?;
        for part in p.parts.iter().filter(|part| part.heads > 0) {
            fits(part, &p)?;
        }
        // Few rows: one per CTA, so that all multiprocessors take part. Many: as many as a CTA moves at a time.
        let spread = u64::from(p.rows).div_ceil(2 * self.multiprocessors);
        let rows = spread.clamp(1, (SWEEP / vectors).clamp(1, ROWS_MAX));
        check::within("vectors of a CTA's rows", rows * vectors, 1, u64::from(u32::MAX) - SWEEP)?;
        p.rows_per_cta = rows as u32;
        let blocks = check::grid("rows", u64::from(p.rows).div_ceil(rows))?;
        // SAFETY: checked above; the caller guarantees the rest.
        unsafe { self.append.launch(stream, Shape::linear(blocks, THREADS), &p) }
    }
}

fn vectors(part: &AppendPart) -> u64 {
    u64::from(part.heads) * u64::from(part.row_bytes / 16)
}

fn fits(part: &AppendPart, p: &AppendParams) -> Result<()> {
    check::address("source of new rows", part.source, 16)?;
    check::aligned("stride of the source's tokens", part.token_stride, 16)?;
    check::aligned("stride of the source's heads", part.head_stride, 16)?;
    check::aligned("bytes of a row", u64::from(part.row_bytes), 16)?;
    check::within("bytes of a row", u64::from(part.row_bytes), 16, u64::from(u32::MAX))?;
    check::aligned("offset of a part in the page", u64::from(part.page_offset), 16)?;
    check::aligned("stride of heads in the page", u64::from(part.page_head_stride), 16)?;
    check::aligned("stride of tokens in the page", u64::from(part.page_token_stride), 16)?;
    let last_head = u64::from(part.heads - 1) * u64::from(part.page_head_stride);
    let last_token = u64::from(p.page_tokens - 1) * u64::from(part.page_token_stride);
    let end = u64::from(part.page_offset) + last_head + last_token + u64::from(part.row_bytes);
    if end > p.stride.min(u64::from(u32::MAX)) {
        return Err(Error::invalid(
            "part of a page",
            format!("it ends at byte {end}, frames are {} bytes apart", p.stride),
        ));
    }
    Ok(())
}

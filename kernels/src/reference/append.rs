//! Append new tokens' rows to their pages.

use super::boundary::{Batch, Table};
use crate::params::AppendPart;

/// Layout of pages in a class's memory.
#[derive(Clone, Copy, Debug)]
pub struct Frames {
    /// Bytes between two frames.
    pub stride: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
}

/// Rows of the new tokens.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Rows `starts[s]..starts[s + 1]` belong to sequence s: its last tokens.
    pub starts: &'a [usize],
    /// The engine's memory.
    pub sources: &'a [u8],
    /// Parts of a token; their `source` is an offset into `sources`.
    pub parts: &'a [AppendPart],
}

/// Write rows to `pages`. Return how many had no page.
pub fn append(
    pages: &mut [u8],
    frames: Frames,
    table: &Table<'_>,
    plane: usize,
    batch: &Batch<'_>,
    rows: &Rows<'_>,
) -> usize {
    let mut faults = 0;
    for seq in 0..batch.lengths.len() {
        let (first, end) = (rows.starts[seq], rows.starts[seq + 1]);
        let length = usize::try_from(batch.lengths[seq]).unwrap_or(0);
        for row in first..end {
            let Some(position) = length.checked_sub(end - row) else { continue };
            let (index, token) = (position / frames.page_tokens, position % frames.page_tokens);
            let block = if index < batch.max_blocks { batch.block_ids[seq * batch.max_blocks + index] } else { -1 };
            let page = table
                .frame(block, plane)
                .map(|frame| frame as usize * frames.stride)
                .and_then(|at| pages.get_mut(at..at + frames.stride));
            let Some(page) = page else {
                faults += 1;
                continue;
            };
            for part in rows.parts {
                put(page, token, row, rows.sources, part);
            }
        }
    }
    faults
}

fn put(page: &mut [u8], token: usize, row: usize, sources: &[u8], part: &AppendPart) {
    let bytes = part.row_bytes as usize;
    for head in 0..part.heads as usize {
        let from = (part.source + row as u64 * part.token_stride + head as u64 * part.head_stride) as usize;
        let to =
            part.page_offset as usize + head * part.page_head_stride as usize + token * part.page_token_stride as usize;
        page[to..to + bytes].copy_from_slice(&sources[from..from + bytes]);
    }
}

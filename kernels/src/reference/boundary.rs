//! Boundaries: updates to the table, and block tables and miss bits built from it.

use crate::params::BoundaryUpdate;
use kvtide_wire::table;

/// A batch as the agent keeps it on the device.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Block ids, a row of `max_blocks` for each sequence; negative is none.
    pub block_ids: &'a [i32],
    /// Tokens that attention covers, for each sequence.
    pub lengths: &'a [i32],
    /// First token that it covers, for each sequence; empty: 0.
    pub starts: &'a [i32],
    /// Columns of `block_ids`.
    pub max_blocks: usize,
}

impl Batch<'_> {
    /// Return the pages of a sequence that attention covers.
    #[must_use]
    pub fn pages(&self, seq: usize, page_tokens: usize) -> std::ops::Range<usize> {
        let length = usize::try_from(self.lengths[seq]).unwrap_or(0);
        let start = self.starts.get(seq).map_or(0, |&start| usize::try_from(start).unwrap_or(0));
        let end = length.div_ceil(page_tokens).min(self.max_blocks);
        (start / page_tokens).min(end)..end
    }
}

/// A lane's table and the planes of one class in it.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// The entries, a row of `planes` for each block.
    pub entries: &'a [u32],
    /// Planes of the table.
    pub planes: usize,
    /// First frame of the class.
    pub first_frame: u32,
    /// Frames from there on that block tables may contain; a page in another frame is absent from them.
    pub frames: u32,
}

impl Table<'_> {
    /// Return the frame of a block's page in a plane, counted from the class's first.
    #[must_use]
    pub fn frame(&self, block: i32, plane: usize) -> Option<u32> {
        let row = usize::try_from(block).ok()?;
        let entry = self.entries.get(row * self.planes..(row + 1) * self.planes)?[plane];
        table::decode(entry).map(|frame| frame - self.first_frame)
    }
}

/// Apply updates in order; return whether all pages were in the table.
pub fn apply(table: &mut [u32], updates: &[BoundaryUpdate]) -> bool {
    let mut all = true;
    for update in updates {
        match table.get_mut(update.page as usize) {
            Some(entry) => *entry = update.entry,
            None => all = false,
        }
    }
    all
}

/// Return the block table (`absent` for a page that does not exist or is absent) and the miss bits of one plane.
#[must_use]
pub fn tables(
    table: &Table<'_>,
    batch: &Batch<'_>,
    plane: usize,
    page_tokens: usize,
    absent: i32,
) -> (Vec<i32>, Vec<u32>) {
    let (seqs, words) = (batch.lengths.len(), batch.max_blocks.div_ceil(32));
    let mut block_tables = vec![absent; seqs * batch.max_blocks];
    let mut misses = vec![0; seqs * words];
    for seq in 0..seqs {
        for index in batch.pages(seq, page_tokens) {
            let at = seq * batch.max_blocks + index;
            match table.frame(batch.block_ids[at], plane) {
                Some(frame) if frame < table.frames => block_tables[at] = frame as i32,
                _ => misses[seq * words + index / 32] |= 1 << (index % 32),
            }
        }
    }
    (block_tables, misses)
}

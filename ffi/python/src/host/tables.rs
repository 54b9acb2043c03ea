//! Block tables and miss bits from a lane's table.

use super::{tensor, tensor_mut};
use kvtide_client::cuda::reference::boundary::{self, Batch, Table};
use pyo3::prelude::*;

/// Arguments of `block_tables`, checked by the operator.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Asked {
    /// u32 `[blocks][planes]`.
    table: usize,
    blocks: usize,
    planes: usize,
    plane: usize,
    plane_count: usize,
    first_frame: u32,
    absent: i32,
    /// i32 `[seqs][columns]`.
    block_ids: usize,
    columns: usize,
    lengths: Vec<i32>,
    /// First visible tokens; empty: 0.
    starts: Vec<i32>,
    page_tokens: usize,
    /// Output, i32 `[plane_count][seqs][columns]` and i32 `[plane_count][seqs][⌈columns / 32⌉]`.
    block_tables: usize,
    misses: usize,
}

/// Build block tables and miss bits.
#[pyfunction]
pub fn block_tables(py: Python<'_>, asked: Asked) {
    let (seqs, words) = (asked.lengths.len(), asked.columns.div_ceil(32));
    // SAFETY: dense torch tensors with these shapes, as the operator checked. A lane's table changes only in calls of this thread.
    // The operator has just allocated the last two.
    let (entries, block_ids, block_tables, misses) = unsafe {
        (
            tensor::<u32>(asked.table, asked.blocks * asked.planes),
            tensor::<i32>(asked.block_ids, seqs * asked.columns),
            tensor_mut::<i32>(asked.block_tables, asked.plane_count * seqs * asked.columns),
            tensor_mut::<u32>(asked.misses, asked.plane_count * seqs * words),
        )
    };
    let table = Table { entries, planes: asked.planes, first_frame: asked.first_frame, frames: u32::MAX };
    let batch = Batch { block_ids, lengths: &asked.lengths, starts: &asked.starts, max_blocks: asked.columns };
    py.detach(|| {
        for index in 0..asked.plane_count {
            let built = boundary::tables(&table, &batch, asked.plane + index, asked.page_tokens, asked.absent);
            block_tables[index * seqs * asked.columns..][..built.0.len()].copy_from_slice(&built.0);
            misses[index * seqs * words..][..built.1.len()].copy_from_slice(&built.1);
        }
    });
}

//! Paged attention over CPU tensors: what the torch operators of `kvtide.torch.ops` do without a GPU.
//!
//! The unit is the page: each gives, for every query row, the largest score, the sum of the weights and the weighted sum of the
//! values, from scratch and in f32; a row's result folds its pages in index order, in f64. A page folded at once and a page whose
//! partial lay in a workspace meanwhile take the same steps, so the bits do not depend on which pages were readable first.

mod given;
mod page;

use crate::error::{raise, value};
use given::{Given, Row};
use half::{bf16, f16};
use kvtide_wire::status::Status;
use page::{Element, Page, State};
use pyo3::prelude::*;

/// A page to read: sequence, block index, frame.
type Work = [usize; 3];

/// Computes the partials of these pages into the workspace.
#[pyfunction]
pub fn attend_pages(py: Python<'_>, given: Given, work: Vec<Work>) -> PyResult<()> {
    given.check(&work)?;
    py.detach(|| if given.bf16 { given.pages::<bf16>(&work) } else { given.pages::<f16>(&work) });
    Ok(())
}

/// Folds the partials of the workspace into `out`; every page that a row sees must have been emitted.
#[pyfunction]
pub fn attend_merge(py: Python<'_>, given: Given, out: usize) -> PyResult<()> {
    given.check(&[])?;
    let missing = py.detach(|| if given.bf16 { given.merge::<bf16>(out) } else { given.merge::<f16>(out) });
    match missing {
        None => Ok(()),
        Some((seq, block)) => {
            Err(raise(Status::State, &format!("merge: page {block} of sequence {seq} of the batch was never emitted")))
        }
    }
}

/// All of it, where every page is readable: `table` is a row of frames for each sequence.
#[pyfunction]
pub fn attend(py: Python<'_>, given: Given, table: Vec<Vec<i64>>, out: usize) -> PyResult<()> {
    let mut work = Vec::new();
    for (seq, row) in table.iter().enumerate().take(given.seqs()) {
        for block in given.blocks_of(seq) {
            let frame = row.get(block).and_then(|frame| usize::try_from(*frame).ok());
            let frame = frame.ok_or_else(|| {
                let text = format!("attend: page {block} of sequence {seq} of the batch is not in the block table");
                raise(Status::State, &text)
            })?;
            work.push([seq, block, frame]);
        }
    }
    if table.len() != given.seqs() {
        return Err(value(format!("block table of {} rows for {} sequences", table.len(), given.seqs())));
    }
    given.check(&work)?;
    py.detach(|| if given.bf16 { given.whole::<bf16>(&work, out) } else { given.whole::<f16>(&work, out) });
    Ok(())
}

impl Given {
    fn pages<E: Element>(&self, work: &[Work]) {
        let mut page = Page::new(self);
        let mut partial = vec![0.0; self.row_floats()];
        for &[seq, block, frame] in work {
            for kv_head in 0..self.kv_heads {
                page.load::<E>(self, frame, kv_head);
                for (row, head) in self.rows_of(seq, kv_head) {
                    page.row::<E>(self, &row, head, block, &mut partial);
                    // SAFETY: `check` held token, head and block against the workspace's shape, which the caller's tensor has.
                    unsafe {
                        let to = self.partial(row.token, head, block);
                        std::ptr::copy_nonoverlapping(partial.as_ptr(), to, partial.len());
                    }
                }
            }
        }
    }

    /// The first page that is missing, if one is.
    fn merge<E: Element>(&self, out: usize) -> Option<(usize, usize)> {
        let mut partial = vec![0.0; self.row_floats()];
        for seq in 0..self.seqs() {
            for (row, head) in (0..self.kv_heads).flat_map(|kv_head| self.rows_of(seq, kv_head)) {
                let mut state = State::new(self.head_dim);
                for block in self.blocks_of(seq) {
                    // SAFETY: as in `pages`; the workspace is initialised, by poison if by nothing else.
                    unsafe {
                        let from = self.partial(row.token, head, block);
                        std::ptr::copy_nonoverlapping(from, partial.as_mut_ptr(), partial.len());
                    }
                    if partial[self.head_dim].is_nan() {
                        return Some((seq, block));
                    }
                    state.fold(&partial);
                }
                self.write::<E>(&state, &row, head, out);
            }
        }
        None
    }

    /// `work` holds the pages of each sequence in index order.
    fn whole<E: Element>(&self, work: &[Work], out: usize) {
        let mut page = Page::new(self);
        let mut partial = vec![0.0; self.row_floats()];
        for seq in 0..self.seqs() {
            for kv_head in 0..self.kv_heads {
                let rows: Vec<(Row, usize)> = self.rows_of(seq, kv_head).collect();
                let mut states: Vec<State> = rows.iter().map(|_| State::new(self.head_dim)).collect();
                for &[_, block, frame] in work.iter().filter(|work| work[0] == seq) {
                    page.load::<E>(self, frame, kv_head);
                    for ((row, head), state) in rows.iter().zip(&mut states) {
                        page.row::<E>(self, row, *head, block, &mut partial);
                        state.fold(&partial);
                    }
                }
                for ((row, head), state) in rows.iter().zip(&states) {
                    self.write::<E>(state, row, *head, out);
                }
            }
        }
    }

    fn write<E: Element>(&self, state: &State, row: &Row, head: usize, out: usize) {
        let at = std::ptr::with_exposed_provenance_mut::<E>(out);
        let first = (row.token * self.heads + head) * self.head_dim;
        for (dim, number) in state.result().enumerate() {
            // SAFETY: `out` has the queries' shape, of which `check` and the sequence starts bound token and head.
            unsafe { at.wrapping_add(first + dim).write(E::of(number)) };
        }
    }
}

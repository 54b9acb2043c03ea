//! Paged attention over CPU tensors: the kernels' reference, page by page, for the torch operators of `kvtide.torch.ops`.
//!
//! Each page gives, for every query row, its partial from scratch; a row's result folds its pages in index order. A page that is
//! folded at once and one whose partial lay in a workspace meanwhile take the same steps, so the bits do not depend on which pages
//! were readable first. A page is copied before it is looked at: the agent writes other frames of tier 0 meanwhile, so that no
//! slice may stand over them.

mod given;

use crate::error::{raise, value};
use given::Given;
use kvtide_client::cuda::reference::attention::Partial;
use kvtide_wire::status::Status;
use pyo3::prelude::*;

/// A page to read: sequence, block index, frame.
type Work = [usize; 3];

/// Computes the partials of these pages into the workspace.
#[pyfunction]
pub fn attend_pages(py: Python<'_>, given: Given, work: Vec<Work>) -> PyResult<()> {
    given.check(&work)?;
    py.detach(|| given.pages(&work));
    Ok(())
}

/// Folds the partials of the workspace into `out`; every page that a row sees must have been emitted.
#[pyfunction]
pub fn attend_merge(py: Python<'_>, given: Given, out: usize) -> PyResult<()> {
    given.check(&[])?;
    match py.detach(|| given.merge(out)) {
        None => Ok(()),
        Some((seq, block)) => {
            Err(raise(Status::State, &format!("merge: page {block} of sequence {seq} of the batch was never emitted")))
        }
    }
}

/// All of it, where every page is readable: `table` is a row of frames for each sequence.
#[pyfunction]
pub fn attend(py: Python<'_>, given: Given, table: Vec<Vec<i64>>, out: usize) -> PyResult<()> {
    given.check(&[])?;
    if table.len() != given.seqs() {
        return Err(value(format!("block table of {} rows for {} sequences", table.len(), given.seqs())));
    }
    let mut work = Vec::new();
    for (seq, row) in table.iter().enumerate() {
        for block in given.needed(seq) {
            let frame = row.get(block).and_then(|frame| usize::try_from(*frame).ok());
            let frame = frame.ok_or_else(|| {
                let text = format!("attend: page {block} of sequence {seq} of the batch is not in the block table");
                raise(Status::State, &text)
            })?;
            work.push([seq, block, frame]);
        }
    }
    given.check(&work)?;
    py.detach(|| given.whole(&work, out));
    Ok(())
}

impl Given {
    fn pages(&self, work: &[Work]) {
        let mut page = self.room();
        for &[seq, block, frame] in work {
            self.read(frame, &mut page);
            let attention = self.over(&page);
            for (token, head) in self.rows(seq) {
                if let Some(partial) = attention.page(seq, block, token, head) {
                    self.keep(seq, token, head, block, &partial);
                }
            }
        }
    }

    /// The first page that is missing, if one is.
    fn merge(&self, out: usize) -> Option<(usize, usize)> {
        for seq in 0..self.seqs() {
            for (token, head) in self.rows(seq) {
                let mut sum = Partial::empty(self.head_dim);
                for block in self.needed(seq) {
                    let Some(partial) = self.kept(seq, token, head, block) else { return Some((seq, block)) };
                    sum.fold(&partial);
                }
                self.write(seq, token, head, &sum, out);
            }
        }
        None
    }

    /// `work` holds the pages of each sequence in index order.
    fn whole(&self, work: &[Work], out: usize) {
        let mut page = self.room();
        for seq in 0..self.seqs() {
            let mut sums: Vec<Partial> = self.rows(seq).map(|_| Partial::empty(self.head_dim)).collect();
            for &[_, block, frame] in work.iter().filter(|work| work[0] == seq) {
                self.read(frame, &mut page);
                let attention = self.over(&page);
                for ((token, head), sum) in self.rows(seq).zip(&mut sums) {
                    if let Some(partial) = attention.page(seq, block, token, head) {
                        sum.fold(&partial);
                    }
                }
            }
            for ((token, head), sum) in self.rows(seq).zip(&sums) {
                self.write(seq, token, head, sum, out);
            }
        }
    }
}

//! Paged attention over CPU tensors: the kernels' reference, page by page, for the torch operators of `kvtide.torch.ops`.
//!
//! For each query row a page gives a partial result, computed independently. A row's result merges its pages in index order. A
//! partial result that is merged at once and one that was kept in a workspace take the same steps, so the bits do not depend on
//! which pages were readable first. A page is copied before it is read: the agent writes other frames of tier 0 meanwhile, so no
//! slice may cover them.

mod given;
mod mass;

use crate::error::{raise, value};
use given::Given;
pub use kvtide_client::cuda::launch::attention::{SCORE_WORDS, TOP_MAX};
use kvtide_client::cuda::reference::attention::Partial;
use kvtide_wire::status::Status;
pub use mass::attend_mass;
use pyo3::prelude::*;

/// A page to read: sequence, block index, frame.
type Work = [usize; 3];

/// Callback that gets, for a sequence, its rows' sums, and the contribution of each page to each row.
type Told<'a> = dyn FnMut(usize, &[Partial], &[Seen]) + 'a;

/// Contribution of a page to a row: largest score, and sum of weights.
struct Seen {
    block: usize,
    row: usize,
    m: f64,
    l: f64,
}

/// Compute the partial results of these pages into the workspace.
#[pyfunction]
pub fn attend_pages(py: Python<'_>, given: Given, work: Vec<Work>) -> PyResult<()> {
    given.check(&work)?;
    py.detach(|| given.pages(&work));
    Ok(())
}

/// Merge the partial results of the workspace into `out`. Every page that a row sees must have been computed.
#[pyfunction]
pub fn attend_merge(py: Python<'_>, given: Given, out: usize) -> PyResult<()> {
    given.check(&[])?;
    match py.detach(|| given.merge(out)) {
        None => Ok(()),
        Some((seq, block)) => {
            Err(raise(Status::State, &format!("merge: page {block} of sequence {seq} of the batch was not computed")))
        }
    }
}

/// Compute attention when every page is readable. `table` has a row of frames for each sequence.
#[pyfunction]
pub fn attend(py: Python<'_>, given: Given, table: Vec<Vec<i64>>, out: usize) -> PyResult<()> {
    let work = given.work(&table)?;
    py.detach(|| given.whole(&work, out, None));
    Ok(())
}

impl Given {
    /// Return the pages that the queries see, in index order for each sequence. All must be in the table.
    fn work(&self, table: &[Vec<i64>]) -> PyResult<Vec<Work>> {
        self.check(&[])?;
        if table.len() != self.seqs() {
            return Err(value(format!("block table of {} rows for {} sequences", table.len(), self.seqs())));
        }
        let mut work = Vec::new();
        for (seq, row) in table.iter().enumerate() {
            for block in self.needed(seq) {
                let frame = row.get(block).and_then(|frame| usize::try_from(*frame).ok());
                let frame = frame.ok_or_else(|| {
                    let text = format!("attend: page {block} of sequence {seq} of the batch is not in the block table");
                    raise(Status::State, &text)
                })?;
                work.push([seq, block, frame]);
            }
        }
        self.check(&work)?;
        Ok(work)
    }

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

    /// Merge all rows. Return the first missing page, if there is one.
    fn merge(&self, out: usize) -> Option<(usize, usize)> {
        for seq in 0..self.seqs() {
            for (token, head) in self.rows(seq) {
                let mut sum = self.empty();
                for block in self.needed(seq) {
                    let Some(partial) = self.kept(seq, token, head, block) else { return Some((seq, block)) };
                    sum.fold(&partial);
                }
                self.write(seq, token, head, &sum, out);
            }
        }
        None
    }

    /// Compute attention over `work`, which has the pages of each sequence in index order.
    fn whole(&self, work: &[Work], out: usize, mut told: Option<&mut Told<'_>>) {
        let mut page = self.room();
        for seq in 0..self.seqs() {
            let mut sums: Vec<Partial> = self.rows(seq).map(|_| self.empty()).collect();
            let mut seen = Vec::new();
            for &[_, block, frame] in work.iter().filter(|work| work[0] == seq) {
                self.read(frame, &mut page);
                let attention = self.over(&page);
                for (row, ((token, head), sum)) in self.rows(seq).zip(&mut sums).enumerate() {
                    if let Some(partial) = attention.page(seq, block, token, head) {
                        if told.is_some() {
                            seen.push(Seen { block, row, m: partial.m, l: partial.l });
                        }
                        sum.fold(&partial);
                    }
                }
            }
            if let Some(told) = &mut told {
                told(seq, &sums, &seen);
            }
            for ((token, head), sum) in self.rows(seq).zip(&sums) {
                self.write(seq, token, head, sum, out);
            }
        }
    }
}

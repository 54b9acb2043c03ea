//! Paged attention over CPU tensors, for the torch operators of `kvtide.torch.ops`.
//!
//! For each query row a page gives a partial result, computed independently. A row's result merges its pages in index order. A
//! partial result that is merged at once and one that was kept in a workspace take the same steps, so the bits do not depend on
//! which pages were readable first.

mod given;
mod mass;
mod units;

use crate::error::raise;
use given::Given;
pub use kvtide_client::cuda::launch::attention::{SCORE_WORDS, TOP_MAX};
use kvtide_wire::status::Status;
pub use mass::attend_mass;
use pyo3::prelude::*;

/// A page to read: sequence, block index, frame.
type Work = [usize; 3];

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
    let frames = given.frames(&table)?;
    py.detach(|| given.whole(&frames, out));
    Ok(())
}

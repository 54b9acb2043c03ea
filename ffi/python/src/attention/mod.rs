//! Paged attention over CPU tensors: the torch operators of `kvtide.torch.ops`, and steps over tier 0 in host memory.
//!
//! For each query row a page gives a partial result, computed independently. A row's result merges its pages in index order, so its
//! bits do not depend on which pages were readable first.

mod given;
mod steps;

use crate::error::value;
use given::Given;
use kvtide_client::cuda::cpu::{self, Fold};
use pyo3::prelude::*;
pub use steps::PagedAttention;

/// Compute with the threads of an OpenMP runtime: addresses of `GOMP_parallel` and `omp_get_max_threads`.
#[pyfunction]
pub fn use_openmp(parallel: usize, max_threads: usize) -> PyResult<()> {
    if parallel == 0 || max_threads == 0 {
        return Err(value("use_openmp: an address is 0"));
    }
    let at = std::ptr::with_exposed_provenance::<()>;
    // SAFETY: `kvtide.torch` looks both up in the runtime of torch, which stays loaded.
    unsafe {
        let parallel = std::mem::transmute::<*const (), cpu::Parallel>(at(parallel));
        let max_threads = std::mem::transmute::<*const (), cpu::MaxThreads>(at(max_threads));
        cpu::use_openmp(parallel, max_threads);
    }
    Ok(())
}

/// Compute attention when every page is readable. `table` has a row of frames for each sequence.
#[pyfunction]
pub fn attend(py: Python<'_>, given: Given, table: Vec<Vec<i64>>, out: usize) -> PyResult<()> {
    let batch = given.batch(out)?;
    let pages = given.pages(&batch, &table)?;
    py.detach(|| {
        let mut fold = Fold::new(&batch, |_| false);
        // SAFETY: the frames are inside the tensor of pages, which belongs to torch.
        unsafe { fold.add(pages) };
        let _ = fold.finish(|_| false); // no page is missing: `pages` has all
    });
    Ok(())
}

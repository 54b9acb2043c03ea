//! Paged attention over CPU tensors: the torch operators of `kvtide.torch.ops`, and steps over tier 0 in host memory.
//!
//! For each query row a page gives a partial result, computed independently. A row's result merges its pages in index order, so its
//! bits do not depend on which pages were readable first.

mod given;
mod steps;

use crate::{error::value, host::tensor_mut};
use given::Given;
use kvtide_client::cuda::cpu::{self, Fold};
pub use kvtide_client::cuda::launch::attention::{SCORE_WORDS, TOP_MAX};
use kvtide_wire::half::F16;
use pyo3::prelude::*;
use std::collections::BTreeMap;
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

/// Compute attention like `attend`, and the kernels' score words of each sequence, i64 `[seqs][SCORE_WORDS]`, with at most `top`
/// entries.
#[pyfunction]
pub fn attend_mass(
    py: Python<'_>,
    given: Given,
    table: Vec<Vec<i64>>,
    out: usize,
    top: usize,
    scores: usize,
) -> PyResult<()> {
    if top > TOP_MAX {
        return Err(value(format!("the {top} largest shares were requested; at most {TOP_MAX} are supported")));
    }
    let batch = given.batch(out)?;
    let pages = given.pages(&batch, &table)?;
    // SAFETY: the operator has just allocated the tensor with this size.
    let words = unsafe { tensor_mut::<u64>(scores, batch.seqs() * SCORE_WORDS) };
    words.fill(0);
    py.detach(|| {
        let mut fold = Fold::new(&batch, |_| true);
        // SAFETY: as in `attend`.
        unsafe { fold.add(pages) };
        let _ = fold.finish(|_| false);
        for seq in 0..batch.seqs() {
            entry(seq, fold.shares(seq), top, &mut words[seq * SCORE_WORDS..][..SCORE_WORDS]);
        }
    });
    Ok(())
}

/// Write the `top` largest shares in the kernel's format. Of equal shares the first page comes first.
fn entry(seq: usize, shares: BTreeMap<usize, f64>, top: usize, words: &mut [u64]) {
    let mut shares: Vec<(usize, f64)> = shares.into_iter().filter(|(_, share)| *share > 0.0).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let log = |share: f64| F16::nearest(share.ln().min(0.0) as f32);
    let rest: f64 = shares.iter().skip(top).map(|(_, share)| share).sum();
    shares.truncate(top);
    (words[0], words[2]) = (seq as u64 | (shares.len() as u64) << 48, log(rest).0.into());
    for (word, (block, share)) in words[SCORE_WORDS - TOP_MAX..].iter_mut().zip(shares) {
        *word = block as u64 | u64::from(log(share).0) << 32;
    }
}

//! Attention mass: each page's share of a sequence's attention, reduced to the largest shares.

use super::{Given, Seen};
use crate::{error::value, host::tensor_mut};
use kvtide_client::cuda::{
    launch::attention::{SCORE_WORDS, TOP_MAX},
    reference::attention::Partial,
};
use kvtide_wire::half::F16;
use pyo3::prelude::*;

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
    let work = given.work(&table)?;
    // SAFETY: the operator has just allocated the tensor with this size.
    let words = unsafe { tensor_mut::<u64>(scores, given.seqs() * SCORE_WORDS) };
    words.fill(0);
    py.detach(|| {
        let mut told = |seq: usize, sums: &[Partial], seen: &[Seen]| {
            entry(seq, shares(sums, seen), top, &mut words[seq * SCORE_WORDS..][..SCORE_WORDS]);
        };
        given.whole(&work, out, Some(&mut told));
    });
    Ok(())
}

/// Return the pages with their shares, summed over rows. The shares add up to 1.
fn shares(sums: &[Partial], seen: &[Seen]) -> Vec<(usize, f64)> {
    let mut shares: Vec<(usize, f64)> = Vec::new();
    for page in seen {
        let sum = &sums[page.row];
        let share = if page.l > 0.0 { (page.m - sum.m).exp() * page.l / sum.l / sums.len() as f64 } else { 0.0 };
        match shares.last_mut() {
            Some((block, all)) if *block == page.block => *all += share,
            _ => shares.push((page.block, share)),
        }
    }
    shares
}

/// Write the `top` largest shares in the kernel's format. Of equal shares the first page comes first.
fn entry(seq: usize, mut shares: Vec<(usize, f64)>, top: usize, words: &mut [u64]) {
    shares.retain(|(_, share)| *share > 0.0);
    shares.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let log = |share: f64| F16::nearest(share.ln().min(0.0) as f32);
    let rest: f64 = shares.iter().skip(top).map(|(_, share)| share).sum();
    shares.truncate(top);
    (words[0], words[2]) = (seq as u64 | (shares.len() as u64) << 48, log(rest).0.into());
    for (word, (block, share)) in words[SCORE_WORDS - TOP_MAX..].iter_mut().zip(shares) {
        *word = block as u64 | u64::from(log(share).0) << 32;
    }
}

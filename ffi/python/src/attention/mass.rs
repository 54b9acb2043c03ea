//! Attention mass: each page's share of a sequence's attention, reduced to the largest shares.

use super::{Given, units::Seen};
use crate::{error::value, host::tensor_mut};
use kvtide_client::cuda::{
    cpu::Partials,
    launch::attention::{SCORE_WORDS, TOP_MAX},
};
use kvtide_wire::half::F16;
use pyo3::prelude::*;
use std::collections::BTreeMap;

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
    let frames = given.frames(&table)?;
    // SAFETY: the operator has just allocated the tensor with this size.
    let words = unsafe { tensor_mut::<u64>(scores, given.seqs() * SCORE_WORDS) };
    words.fill(0);
    py.detach(|| {
        for seq in 0..given.seqs() {
            let mut all = BTreeMap::new();
            for unit in given.units(seq) {
                let rows = given.queries_of(&unit);
                let mut seen: Vec<Seen> = Vec::new();
                let mut each = |block, page: &Partials| seen.push((block, page.m.clone(), page.l.clone()));
                let sum = given.folded(&unit, &rows, &frames[seq], &mut each);
                given.write_all(&unit, &sum, out);
                add_shares(&sum, &seen, &mut all);
            }
            let rows = (given.queries(seq) * given.group() * given.kv_heads()) as f64;
            let shares = all.into_iter().map(|(block, share)| (block, share / rows)).collect();
            entry(seq, shares, top, &mut words[seq * SCORE_WORDS..][..SCORE_WORDS]);
        }
    });
    Ok(())
}

/// Add each page's share of each row's attention to its sum. The shares of a row add up to 1.
fn add_shares(sum: &Partials, seen: &[Seen], to: &mut BTreeMap<usize, f64>) {
    for (block, m, l) in seen {
        let rows = m.iter().zip(l).zip(sum.m.iter().zip(&sum.l));
        let shares = rows.filter(|((_, l), _)| **l > 0.0).map(|((m, l), (all_m, all_l))| {
            (f64::from(*m) - f64::from(*all_m)).exp() * f64::from(*l) / f64::from(*all_l)
        });
        *to.entry(*block).or_default() += shares.sum::<f64>();
    }
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

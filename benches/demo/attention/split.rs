//! One split: the queries of a step against one page.

use super::{GROUP, HEAD_DIM, HeadPage, Heads, KV_HEADS, PAGE_TOKENS, Q_HEADS, TILE};
use crate::demo::model::math::{LANES, exp, sum_lanes};

/// Contribution of one page to one query head of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Partial {
    /// Largest score.
    pub max: f32,
    /// Sum of exp(score − max).
    pub sum: f32,
    /// Sum of exp(score − max) × value.
    pub out: [f32; HEAD_DIM],
}

impl Partial {
    /// The empty contribution.
    pub const EMPTY: Partial = Partial { max: f32::NEG_INFINITY, sum: 0.0, out: [0.0; HEAD_DIM] };
}

/// Compute the partials of the page at block `index` for queries (after RoPE, scaled; `[tokens][Q_HEADS][HEAD_DIM]`) at positions
/// `start`, `start + 1`, …, into `out[tokens][Q_HEADS]`. Partials of tokens before the page are not written, because
/// [`super::merge`] never reads them.
pub fn split(page: &Heads, index: usize, queries: &[f32], start: usize, out: &mut [Partial]) {
    let first = index * PAGE_TOKENS;
    let tokens = queries.chunks_exact(Q_HEADS * HEAD_DIM).zip(out.chunks_exact_mut(Q_HEADS));
    for (t, (query, out)) in tokens.enumerate() {
        let Some(visible) = (start + t + 1).checked_sub(first).filter(|n| *n > 0) else { continue };
        for h in 0..KV_HEADS {
            let query = &query[h * GROUP * HEAD_DIM..][..GROUP * HEAD_DIM];
            group(&page[h], visible.min(PAGE_TOKENS), query, &mut out[h * GROUP..][..GROUP]);
        }
    }
}

/// Compute the partials of the query heads of one token that share a KV head. Data after `visible` tokens is undefined and not
/// used.
#[inline(always)]
fn group(page: &HeadPage, visible: usize, query: &[f32], out: &mut [Partial]) {
    let mut scores = [[0.0_f32; PAGE_TOKENS]; GROUP];
    for (c, tile) in page.keys.iter().enumerate().take(visible.div_ceil(TILE)) {
        let mut sums = [[0.0_f32; TILE]; GROUP];
        for (d, keys) in tile.iter().enumerate() {
            for (r, sums) in sums.iter_mut().enumerate() {
                let q = query[r * HEAD_DIM + d];
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum += q * key;
                }
            }
        }
        for (scores, sums) in scores.iter_mut().zip(&sums) {
            scores[c * TILE..][..TILE].copy_from_slice(sums);
        }
    }
    for (scores, out) in scores.iter_mut().zip(out.iter_mut()) {
        (out.max, out.sum) = soften(scores, visible);
    }
    for (c, tile) in page.values.iter().enumerate() {
        let mut sums = [[0.0_f32; TILE]; GROUP];
        for (j, values) in tile[..visible].iter().enumerate() {
            for (weights, sums) in scores.iter().zip(&mut sums) {
                let weight = weights[j];
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum += weight * value;
                }
            }
        }
        for (out, sums) in out.iter_mut().zip(&sums) {
            out.out[c * TILE..][..TILE].copy_from_slice(sums);
        }
    }
}

/// Replace scores by exp(score − max). Return the maximum and the sum.
#[inline(always)]
fn soften(scores: &mut [f32; PAGE_TOKENS], visible: usize) -> (f32, f32) {
    scores[visible..].fill(f32::NEG_INFINITY);
    let mut tops = [f32::NEG_INFINITY; LANES];
    for part in scores.chunks_exact(LANES) {
        for (top, s) in tops.iter_mut().zip(part) {
            *top = if *s > *top { *s } else { *top };
        }
    }
    let max = tops.into_iter().fold(f32::NEG_INFINITY, f32::max);
    for s in scores.iter_mut() {
        *s = exp(*s - max);
    }
    scores[visible..].fill(0.0);
    let mut sums = [0.0; LANES];
    for part in scores.chunks_exact(LANES) {
        for (sum, s) in sums.iter_mut().zip(part) {
            *sum += s;
        }
    }
    (max, sum_lanes(sums))
}

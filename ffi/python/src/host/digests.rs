//! Digests of sealed pages, bounds from digests, and selection of the best pages.

use super::{
    element,
    rows::{Rows, Shape},
    tensor, tensor_mut,
};
use crate::error::value;
use kvtide_client::cuda::reference::{
    boundary::Batch,
    digest::{self, Choice, Digests},
};
use pyo3::prelude::*;
use std::ptr::with_exposed_provenance_mut as at_mut;

fn refused(error: &dyn std::fmt::Display) -> PyErr {
    value(error.to_string())
}

/// Digests of a plane: u8 `[blocks][kv_heads][4 × channels + 4]`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Plane {
    digests: usize,
    blocks: usize,
    kv_heads: usize,
    channels: usize,
}

/// Build the digests of blocks `items`: (block of the rows, its tokens, block of the digests).
#[pyfunction]
pub fn digest_build(
    py: Python<'_>,
    rows: Rows,
    shape: Shape,
    bf16: bool,
    items: Vec<[usize; 3]>,
    plane: Plane,
) -> PyResult<()> {
    let bytes = kvtide_wire::digest::bytes(plane.channels);
    for [block, tokens, target] in &items {
        rows.check(*block)?;
        if *tokens == 0 || *tokens > shape.tokens || *target >= plane.blocks {
            return Err(value(format!(
                "digest {target} of {tokens} tokens: there are {} digests, and 1 to {} tokens in a page",
                plane.blocks, shape.tokens
            )));
        }
    }
    let built = py.detach(|| {
        let mut layer = vec![0; shape.numbers()];
        for [block, tokens, target] in items {
            rows.read(shape, 0, block, tokens, &mut layer);
            for head in 0..shape.heads {
                let keys = &layer[shape.row(0, head, 0)..][..tokens * shape.channels];
                let made = digest::build(element(bf16), keys, shape.channels)?;
                let to = at_mut::<u8>(plane.digests).wrapping_add((target * plane.kv_heads + head) * bytes);
                // SAFETY: the operator checked the tensor's shape against the keys', and the block was checked above.
                unsafe { std::ptr::copy_nonoverlapping(made.as_ptr(), to, bytes) };
            }
        }
        Ok(())
    });
    built.map_err(|e: kvtide_wire::error::Error| refused(&e))
}

/// Arguments of `digest_scores`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Asked {
    /// `[seqs][kv_heads × group][channels]`.
    query: usize,
    bf16: bool,
    group: usize,
    /// i32 `[seqs][columns]`.
    block_ids: usize,
    columns: usize,
    lengths: Vec<i32>,
    /// Tokens in sealed pages, and first visible token. Empty: all but a last partial page, and 0.
    sealed: Vec<i32>,
    starts: Vec<i32>,
    page_tokens: usize,
    scale: f32,
    /// Output, f32 `[seqs][kv_heads × group][columns]`.
    bounds: usize,
}

/// Compute upper bounds of the products of each query with a page's keys.
#[pyfunction]
pub fn digest_scores(py: Python<'_>, plane: Plane, asked: Asked) -> PyResult<()> {
    let (seqs, heads) = (asked.lengths.len(), plane.kv_heads * asked.group);
    let size = plane.blocks * plane.kv_heads * kvtide_wire::digest::bytes(plane.channels);
    // SAFETY: dense torch tensors with these shapes, as the operator checked. It has just allocated the last.
    let (bytes, query, block_ids, bounds) = unsafe {
        (
            tensor::<u8>(plane.digests, size),
            tensor::<u16>(asked.query, seqs * heads * plane.channels),
            tensor::<i32>(asked.block_ids, seqs * asked.columns),
            tensor_mut::<f32>(asked.bounds, seqs * heads * asked.columns),
        )
    };
    let batch = Batch { block_ids, lengths: &asked.lengths, starts: &asked.starts, max_blocks: asked.columns };
    let digests = Digests { bytes, kv_heads: plane.kv_heads, channels: plane.channels };
    let scored = py.detach(|| {
        for row in 0..seqs * heads {
            let (seq, head) = (row / heads, row % heads);
            let length = usize::try_from(asked.lengths[seq]).unwrap_or(0);
            let sealed = asked.sealed.get(seq).map_or(length, |sealed| usize::try_from(*sealed).unwrap_or(0));
            let numbers = &query[row * plane.channels..][..plane.channels];
            let numbers: Vec<f32> = numbers.iter().map(|bits| element(asked.bf16).to_f32(*bits)).collect();
            let found = digest::bounds(&digests, head / asked.group, &numbers, &batch, seq, asked.page_tokens, sealed)?;
            let to = &mut bounds[row * asked.columns..][..asked.columns];
            to.iter_mut().zip(found).for_each(|(to, bound)| *to = (bound * f64::from(asked.scale)) as f32);
        }
        Ok(())
    });
    scored.map_err(|e: kvtide_wire::error::Error| refused(&e))
}

/// Arguments of `digest_select`: bounds f32 `[seqs][heads][columns]`, and the results.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Choosing {
    bounds: usize,
    seqs: usize,
    heads: usize,
    columns: usize,
    budget: usize,
    keep_first: usize,
    keep_last: usize,
    /// f32 `[seqs][columns]`, i32 `[seqs][budget]`, i32 `[seqs]`, f32 `[seqs]`.
    estimates: usize,
    chosen: usize,
    counts: usize,
    omitted: usize,
}

/// Compute one estimate per page from the bounds of all heads, and choose the best pages of each sequence.
#[pyfunction]
pub fn digest_select(py: Python<'_>, given: Choosing) {
    let Choosing { seqs, heads, columns, budget, .. } = given;
    // SAFETY: dense torch tensors with these shapes, as the operator checked. It has just allocated all but the first.
    let (bounds, estimates, chosen, counts, omitted) = unsafe {
        (
            tensor::<f32>(given.bounds, seqs * heads * columns),
            tensor_mut::<f32>(given.estimates, seqs * columns),
            tensor_mut::<i32>(given.chosen, seqs * budget),
            tensor_mut::<i32>(given.counts, seqs),
            tensor_mut::<f32>(given.omitted, seqs),
        )
    };
    let choice = Choice { budget, keep_first: given.keep_first, keep_last: given.keep_last };
    py.detach(|| {
        for seq in 0..seqs {
            let of_heads: Vec<Vec<f64>> = (0..heads)
                .map(|head| bounds[(seq * heads + head) * columns..][..columns].iter().map(|b| f64::from(*b)).collect())
                .collect();
            let of_heads: Vec<&[f64]> = of_heads.iter().map(Vec::as_slice).collect();
            let found = digest::estimates(&of_heads, choice);
            let (pages, share) = digest::choose(&found, budget);
            estimates[seq * columns..][..columns].iter_mut().zip(&found).for_each(|(to, e)| *to = *e as f32);
            let row = &mut chosen[seq * budget..][..budget];
            row.fill(-1);
            row.iter_mut().zip(&pages).for_each(|(to, page)| *to = *page as i32);
            (counts[seq], omitted[seq]) = (pages.len() as i32, share as f32);
        }
    });
}

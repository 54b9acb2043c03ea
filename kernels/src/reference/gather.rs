//! Copies of blocks between layouts.

use crate::params::{GatherItem, GatherLayout, GatherParams};

/// Copy the blocks of `items` row by row; bases and offsets count from the start of `from` and `to`. Only the shape in `params` is
/// used; `bases` replaces the memory behind the `bases` of its layouts, source and target.
pub fn gather(params: &GatherParams, bases: (&[u64], &[u64]), items: &[GatherItem], from: &[u8], to: &mut [u8]) {
    let bytes = params.row_bytes as usize;
    for item in items {
        for part in 0..(params.layers * params.parts) as usize {
            for head in 0..u64::from(params.heads) {
                for token in 0..u64::from(params.tokens) {
                    let read = row(bases.0[part], item.from, &params.from, head, token);
                    let written = row(bases.1[part], item.to, &params.to, head, token);
                    to[written..written + bytes].copy_from_slice(&from[read..read + bytes]);
                }
            }
        }
    }
}

fn row(base: u64, offset: u64, layout: &GatherLayout, head: u64, token: u64) -> usize {
    base.wrapping_add(offset)
        .wrapping_add(head.wrapping_mul(layout.head_stride))
        .wrapping_add(token.wrapping_mul(layout.token_stride)) as usize
}

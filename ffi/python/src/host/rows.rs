//! Blocks of rows, in an engine's layout or in pages.

use crate::error::value;
use pyo3::prelude::*;
use std::ptr::{with_exposed_provenance as at, with_exposed_provenance_mut as at_mut};

/// Blocks in one layout. Row (layer, part, head, token) of block `b` is at byte
/// `bases[layer × parts + part] + b × block_stride + head × head_stride + token × token_stride`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Rows {
    bases: Vec<usize>,
    block_stride: usize,
    head_stride: usize,
    token_stride: usize,
    /// Number of blocks.
    blocks: usize,
}

/// Shape of a block; `bases` has `layers × parts` entries.
#[derive(FromPyObject, Clone, Copy)]
#[pyo3(from_item_all)]
pub struct Shape {
    layers: usize,
    /// 2 (keys, values) or 1 (keys, latent vectors).
    parts: usize,
    heads: usize,
    tokens: usize,
    channels: usize,
}

impl Shape {
    /// Return the 16-bit numbers in a layer.
    fn numbers(self) -> usize {
        self.parts * self.heads * self.tokens * self.channels
    }

    /// Return the index of a row in a dense layer.
    fn row(self, part: usize, head: usize, token: usize) -> usize {
        ((part * self.heads + head) * self.tokens + token) * self.channels
    }
}

impl Rows {
    /// Verify a block number.
    ///
    /// # Errors
    /// `ValueError` if there is no such block.
    fn check(&self, block: usize) -> PyResult<()> {
        if block < self.blocks {
            return Ok(());
        }
        Err(value(format!("block {block}: there are only {} blocks", self.blocks)))
    }

    /// Return the address of a row. `block` was checked; the other indices are within the shape.
    fn row(&self, layer_part: usize, block: usize, head: usize, token: usize) -> usize {
        self.bases[layer_part] + block * self.block_stride + head * self.head_stride + token * self.token_stride
    }

    /// Copy a layer of a block into a dense layer.
    fn read(&self, shape: Shape, layer: usize, block: usize, to: &mut [u16]) {
        self.each(shape, layer, block, |row, dense| {
            // SAFETY: shapes and strides are those of the tensor, and the block was checked; `to` has space for the layer.
            unsafe {
                std::ptr::copy_nonoverlapping(at(row), to[dense..][..shape.channels].as_mut_ptr(), shape.channels)
            };
        });
    }

    /// Copy a dense layer into a layer of a block.
    fn write(&self, shape: Shape, layer: usize, block: usize, from: &[u16]) {
        self.each(shape, layer, block, |row, dense| {
            // SAFETY: as in `read`.
            unsafe {
                std::ptr::copy_nonoverlapping(from[dense..][..shape.channels].as_ptr(), at_mut(row), shape.channels)
            };
        });
    }

    fn each(&self, shape: Shape, layer: usize, block: usize, mut row: impl FnMut(usize, usize)) {
        for part in 0..shape.parts {
            for head in 0..shape.heads {
                for token in 0..shape.tokens {
                    row(self.row(layer * shape.parts + part, block, head, token), shape.row(part, head, token));
                }
            }
        }
    }
}

/// Copy blocks `items` (from, to) from one layout to another.
#[pyfunction]
pub fn copy_blocks(py: Python<'_>, source: Rows, target: Rows, shape: Shape, items: Vec<[usize; 2]>) -> PyResult<()> {
    for [from, to] in &items {
        source.check(*from)?;
        target.check(*to)?;
    }
    py.detach(|| {
        let mut layer = vec![0; shape.numbers()];
        for [from, to] in items {
            for index in 0..shape.layers {
                source.read(shape, index, from, &mut layer);
                target.write(shape, index, to, &layer);
            }
        }
    });
    Ok(())
}

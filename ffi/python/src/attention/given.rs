//! Arguments of an attention operator: dense tensors by address, and their shapes.

use crate::error::{raise, value};
use kvtide_client::cuda::{
    cpu::{Batch, Page, Vectors},
    reference::Element,
};
use kvtide_wire::status::Status;
use pyo3::prelude::*;

/// Arguments built by `kvtide.torch.ops`, which checked the tensors' shapes.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Given {
    /// `[tokens, heads, head_dim]`.
    query: usize,
    tokens: usize,
    /// `[frames, 2, kv_heads, page_tokens, head_dim]`, or latent `[frames, page_tokens, head_dim]`. `frame_bytes` is the distance
    /// from one frame to the next.
    pages: usize,
    frames: usize,
    frame_bytes: usize,
    heads: usize,
    kv_heads: usize,
    page_tokens: usize,
    head_dim: usize,
    value_dim: usize,
    bf16: bool,
    lengths: Vec<usize>,
    starts: Vec<usize>,
    scale: f64,
    window: usize,
}

impl Given {
    /// Return the batch, with results to the dense tensor at `out`.
    ///
    /// # Errors
    /// `ValueError` for sizes that do not fit together.
    pub fn batch(&self, out: usize) -> PyResult<Batch> {
        let batch = Batch {
            query: Vectors { at: self.query, stride: self.heads * self.head_dim },
            out: Vectors { at: out, stride: self.heads * self.value_dim },
            heads: self.heads,
            kv_heads: self.kv_heads,
            page_tokens: self.page_tokens,
            head_dim: self.head_dim,
            value_dim: self.value_dim,
            element: if self.bf16 { Element::Bf16 } else { Element::F16 },
            lengths: self.lengths.clone(),
            starts: self.starts.clone(),
            scale: self.scale,
            window: self.window,
        };
        batch.check(self.tokens).map_err(value)?;
        Ok(batch)
    }

    /// Return the pages that the queries see. `table` has a row of frames for each sequence.
    ///
    /// # Errors
    /// `ValueError` for a table of another size or a frame that is not there, `WrongState` with the first page that is not in the
    /// table.
    pub fn pages(&self, batch: &Batch, table: &[Vec<i64>]) -> PyResult<Vec<Page>> {
        if table.len() != batch.seqs() {
            return Err(value(format!("block table of {} rows for {} sequences", table.len(), batch.seqs())));
        }
        let mut pages = Vec::new();
        for (seq, row) in table.iter().enumerate() {
            for block in batch.needed(seq) {
                let frame = row.get(block).and_then(|frame| usize::try_from(*frame).ok());
                let frame = frame.ok_or_else(|| {
                    let text = format!("attend: page {block} of sequence {seq} of the batch is not in the block table");
                    raise(Status::State, &text)
                })?;
                if frame >= self.frames {
                    let frames = self.frames;
                    return Err(value(format!("block {block} of sequence {seq}: frame {frame}; there are {frames}")));
                }
                pages.push((seq, block, self.pages + frame * self.frame_bytes));
            }
        }
        Ok(pages)
    }
}

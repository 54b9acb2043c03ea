//! Arguments of an attention call: dense tensors by address, and their shapes.

use crate::error::value;
use kvtide_client::cuda::reference::{
    Element,
    attention::{Attention, Layout, Partial},
};
use pyo3::prelude::*;
use std::{
    ops::Range,
    ptr::{with_exposed_provenance as at, with_exposed_provenance_mut as at_mut},
};

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
    /// Dimension of a key, and of its value: the same, or for latent vectors the first part.
    head_dim: usize,
    value_dim: usize,
    bf16: bool,
    /// Tokens of each sequence that attention covers, including the queries; and the row where each sequence's queries begin.
    lengths: Vec<i32>,
    starts: Vec<usize>,
    scale: f64,
    /// Maximum tokens that a query sees, including itself; 0: all before it.
    window: usize,
    /// `[tokens, heads, blocks, value_dim + 2]` f64: values, largest score, sum of weights. NaN: not computed.
    partials: usize,
    blocks: usize,
}

impl Given {
    pub fn seqs(&self) -> usize {
        self.lengths.len()
    }

    /// Return the query tokens of a sequence, each with every head.
    pub fn rows(&self, seq: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (queries, heads) = (self.starts[seq + 1] - self.starts[seq], self.heads);
        (0..queries).flat_map(move |token| (0..heads).map(move |head| (token, head)))
    }

    fn element(&self) -> Element {
        if self.bf16 { Element::Bf16 } else { Element::F16 }
    }

    fn layout(&self) -> Layout {
        let rope = self.head_dim - self.value_dim;
        if rope == 0 {
            Layout::Heads { head_dim: self.head_dim }
        } else {
            Layout::Latent { latent: self.value_dim, rope }
        }
    }

    /// Return the partial result over no tokens.
    pub fn empty(&self) -> Partial {
        Partial::empty(self.value_dim)
    }

    /// Return the reference attention with `page` as its only frame, to which every block of every sequence maps.
    pub fn over<'a>(&'a self, page: &'a Room) -> Attention<'a> {
        let numbers = self.tokens * self.heads * self.head_dim;
        // SAFETY: the query tensor is dense and has this shape (`ops` derived both numbers from it). It belongs to torch: only the
        // thread in this call could cause a write to it.
        let q = if numbers == 0 { &[] } else { unsafe { std::slice::from_raw_parts(at(self.query), numbers) } };
        Attention {
            element: self.element(),
            layout: self.layout(),
            kv_heads: self.kv_heads,
            group: self.heads / self.kv_heads,
            page_tokens: self.page_tokens,
            window: self.window,
            scale: self.scale,
            q,
            pages: &page.page,
            page_stride: page.page.len(),
            block_table: &page.table,
            table_stride: 0,
            lengths: &self.lengths,
            q_starts: &self.starts,
        }
    }

    /// Return the indices of the blocks that some query of a sequence sees.
    pub fn needed(&self, seq: usize) -> Range<usize> {
        self.over(&Room { page: Vec::new(), table: Vec::new() }).needed(seq)
    }

    /// Allocate memory for a page, and a table that maps every block to frame 0.
    pub fn room(&self) -> Room {
        let blocks = (0..self.seqs()).map(|seq| self.needed(seq).end).max().unwrap_or(0).max(self.blocks);
        Room { page: vec![0; self.layout().page(self.kv_heads, self.page_tokens)], table: vec![0; blocks] }
    }

    /// Copy the page in a frame.
    pub fn read(&self, frame: usize, to: &mut Room) {
        let from = at::<u8>(self.pages).wrapping_add(frame * self.frame_bytes);
        // SAFETY: `check` verified that the frame is inside the tensor, and each frame holds a page. The lane's table has the page
        // there, so it is not overwritten before the lane's next boundary, which this thread would have to pass.
        unsafe { std::ptr::copy_nonoverlapping(from.cast(), to.page.as_mut_ptr(), to.page.len()) };
    }

    fn partial(&self, seq: usize, token: usize, head: usize, block: usize) -> usize {
        let row = (self.starts[seq] + token) * self.heads + head;
        self.partials + (row * self.blocks + block) * (self.value_dim + 2) * size_of::<f64>()
    }

    /// Write a partial result to the workspace.
    pub fn keep(&self, seq: usize, token: usize, head: usize, block: usize, partial: &Partial) {
        let to = at_mut::<f64>(self.partial(seq, token, head, block));
        // SAFETY: `check` verified sequence and block against the workspace's shape; rows come from the query's. The tensor is f64.
        unsafe {
            std::ptr::copy_nonoverlapping(partial.o.as_ptr(), to, self.value_dim);
            to.add(self.value_dim).write(partial.m);
            to.add(self.value_dim + 1).write(partial.l);
        }
    }

    /// Read a partial result from the workspace; `None` if it was not computed.
    pub fn kept(&self, seq: usize, token: usize, head: usize, block: usize) -> Option<Partial> {
        let from = at::<f64>(self.partial(seq, token, head, block));
        let mut partial = self.empty();
        // SAFETY: as in `keep`; the workspace was filled with NaN when it was created, so all of it is initialised.
        unsafe {
            std::ptr::copy_nonoverlapping(from, partial.o.as_mut_ptr(), self.value_dim);
            (partial.m, partial.l) = (from.add(self.value_dim).read(), from.add(self.value_dim + 1).read());
        }
        (!partial.m.is_nan()).then_some(partial)
    }

    /// Write a row's result; zeros if it saw no tokens.
    pub fn write(&self, seq: usize, token: usize, head: usize, sum: &Partial, out: usize) {
        let first = ((self.starts[seq] + token) * self.heads + head) * self.value_dim;
        let weight = if sum.l == 0.0 { 1.0 } else { sum.l };
        let to = at_mut::<u16>(out).wrapping_add(first);
        for (dim, number) in sum.o.iter().enumerate() {
            let bits = self.element().from_f32((number / weight) as f32);
            // SAFETY: `out` has one row of `value_dim` numbers per row of the query.
            unsafe { to.wrapping_add(dim).write(bits) };
        }
    }

    /// Verify that the sizes fit together and that `work` is inside the tensors. Afterwards no address is out of bounds.
    ///
    /// # Errors
    /// `ValueError` with the difference.
    pub fn check(&self, work: &[[usize; 3]]) -> PyResult<()> {
        let (seqs, starts) = (self.lengths.len(), &self.starts);
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) || self.page_tokens == 0 {
            return Err(value(format!(
                "{} query heads over {} KV heads, pages of {} tokens: heads must be a multiple of KV heads, and none may be 0",
                self.heads, self.kv_heads, self.page_tokens
            )));
        }
        if self.value_dim == 0 || self.value_dim > self.head_dim {
            return Err(value(format!("values of {} numbers do not fit in keys of {}", self.value_dim, self.head_dim)));
        }
        let ordered = starts.first() == Some(&0) && starts.windows(2).all(|pair| pair[0] <= pair[1]);
        if starts.len() != seqs + 1 || !ordered || starts.last() != Some(&self.tokens) {
            return Err(value(format!(
                "q_starts {starts:?}: must rise from 0 to the {} query tokens, with one more entry than the {seqs} sequences",
                self.tokens
            )));
        }
        for (seq, length) in self.lengths.iter().enumerate() {
            let queries = starts[seq + 1] - starts[seq];
            if usize::try_from(*length).is_ok_and(|length| length < queries) || *length < 0 {
                return Err(value(format!(
                    "sequence {seq}: {length} tokens are fewer than its {queries} queries, which are its last tokens"
                )));
            }
            let blocks = self.needed(seq).end;
            if self.partials != 0 && blocks > self.blocks {
                return Err(value(format!("sequence {seq}: {blocks} pages; the workspace is for {}", self.blocks)));
            }
        }
        for &[seq, block, frame] in work {
            if seq >= seqs || frame >= self.frames || (self.partials != 0 && block >= self.blocks) {
                let (frames, blocks) = (self.frames, self.blocks);
                return Err(value(format!(
                    "page (sequence {seq}, block {block}, frame {frame}): there are {seqs} sequences, {frames} frames and a \
                     workspace for {blocks} blocks"
                )));
            }
        }
        Ok(())
    }
}

/// Memory for one page, and a table for it.
pub struct Room {
    page: Vec<u16>,
    table: Vec<i32>,
}

//! Arguments of an attention call: dense tensors by address, and their shapes.

use super::units::Unit;
use crate::error::{raise, value};
use kvtide_client::cuda::{
    cpu::{Head, Pages, Partials, Rows, VectorUnit},
    reference::Element,
};
use kvtide_wire::status::Status;
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
    /// `[tokens, heads, blocks, value_dim + 2]` f32: values, largest score, sum of weights. NaN: not computed.
    partials: usize,
    blocks: usize,
}

impl Given {
    pub fn seqs(&self) -> usize {
        self.lengths.len()
    }

    /// Return the number of query tokens of a sequence.
    pub fn queries(&self, seq: usize) -> usize {
        self.starts[seq + 1] - self.starts[seq]
    }

    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Return the query heads of a KV head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    pub fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    pub fn value_dim(&self) -> usize {
        self.value_dim
    }

    fn element(&self) -> Element {
        if self.bf16 { Element::Bf16 } else { Element::F16 }
    }

    /// Return the shape of the pages for the kernels.
    pub fn shape(&self) -> Pages {
        Pages {
            element: self.element(),
            key: self.head_dim,
            value: self.value_dim,
            stride: self.head_dim,
            tokens: self.page_tokens,
            unit: VectorUnit::widest(),
        }
    }

    /// Return the place of a unit's row in the query: of each token all heads.
    pub fn row(&self, unit: &Unit, row: usize) -> usize {
        let (token, head) = (row / self.group(), row % self.group());
        (self.starts[unit.seq] + unit.tokens.start + token) * self.heads + unit.head * self.group() + head
    }

    /// Return a unit's queries with the positions that they see.
    pub fn queries_of(&self, unit: &Unit) -> Rows {
        let mut rows = Rows::default();
        for row in 0..unit.tokens.len() * self.group() {
            let from = at::<u16>(self.query).wrapping_add(self.row(unit, row) * self.head_dim);
            // SAFETY: the query tensor is dense and has this shape (`ops` derived it). It belongs to torch: only the thread in this
            // call could cause a write to it.
            let query = unsafe { std::slice::from_raw_parts(from, self.head_dim) };
            let numbers = query.iter().map(|bits| self.element().to_f32(*bits));
            rows.push(numbers, self.scale as f32, self.seen(unit.seq, unit.tokens.start + row / self.group()));
        }
        rows
    }

    /// Return the range of positions that a query token of a sequence sees.
    fn seen(&self, seq: usize, token: usize) -> (usize, usize) {
        let limit = (self.lengths[seq] as usize + token + 1).saturating_sub(self.queries(seq)); // `check`: not negative
        (if self.window == 0 { 0 } else { limit.saturating_sub(self.window) }, limit)
    }

    /// Return the indices of the blocks that some query of a sequence sees.
    pub fn needed(&self, seq: usize) -> Range<usize> {
        match self.queries(seq) {
            0 => 0..0,
            queries => {
                let ((first, _), (_, limit)) = (self.seen(seq, 0), self.seen(seq, queries - 1));
                first / self.page_tokens..limit.div_ceil(self.page_tokens)
            }
        }
    }

    /// Return the addresses of a KV head in the page of a frame.
    pub fn head(&self, frame: usize, head: usize) -> Head {
        let page = at::<u8>(self.pages).wrapping_add(frame * self.frame_bytes).cast::<u16>();
        let heads = self.page_tokens * self.head_dim;
        let keys = page.wrapping_add(head * heads);
        // A latent vector is the key, and its first part the value.
        let values = if self.value_dim == self.head_dim { keys.wrapping_add(self.kv_heads * heads) } else { keys };
        Head { keys, values }
    }

    /// Return the frames of each sequence's blocks. All that its queries see must be in the table.
    ///
    /// # Errors
    /// `ValueError` for a table of another size, `WrongState` with the first page that is not in the table.
    pub fn frames(&self, table: &[Vec<i64>]) -> PyResult<Vec<Vec<usize>>> {
        self.check(&[])?;
        if table.len() != self.seqs() {
            return Err(value(format!("block table of {} rows for {} sequences", table.len(), self.seqs())));
        }
        let mut work = Vec::new();
        for (seq, row) in table.iter().enumerate() {
            for block in self.needed(seq) {
                let frame = row.get(block).and_then(|frame| usize::try_from(*frame).ok());
                let frame = frame.ok_or_else(|| {
                    let text = format!("attend: page {block} of sequence {seq} of the batch is not in the block table");
                    raise(Status::State, &text)
                })?;
                work.push([seq, block, frame]);
            }
        }
        self.check(&work)?;
        let frame = |frame: &i64| usize::try_from(*frame).unwrap_or(0); // outside the needed blocks, and not read
        Ok(table.iter().map(|row| row.iter().map(frame).collect()).collect())
    }

    fn partial(&self, row: usize, block: usize) -> usize {
        self.partials + (row * self.blocks + block) * (self.value_dim + 2) * size_of::<f32>()
    }

    /// Write a partial result of a row of the query to the workspace.
    pub fn keep(&self, row: usize, block: usize, partials: &Partials, from: usize) {
        let to = at_mut::<f32>(self.partial(row, block));
        // SAFETY: `check` verified sequence and block against the workspace's shape; rows come from the query's. The tensor is f32,
        // and no other thread writes this row and block.
        unsafe {
            std::ptr::copy_nonoverlapping(partials.o(from).as_ptr(), to, self.value_dim);
            to.add(self.value_dim).write(partials.m[from]);
            to.add(self.value_dim + 1).write(partials.l[from]);
        }
    }

    /// Read a partial result from the workspace; false if it was not computed.
    pub fn kept(&self, row: usize, block: usize, to: &mut Partials, at_row: usize) -> bool {
        let from = at::<f32>(self.partial(row, block));
        // SAFETY: as in `keep`; the workspace was filled with NaN when it was created, so all of it is initialised.
        let numbers = unsafe { std::slice::from_raw_parts(from, self.value_dim + 2) };
        let (o, ml) = numbers.split_at(self.value_dim);
        to.set(at_row, ml[0], ml[1], o);
        !ml[0].is_nan()
    }

    /// Write a row's result; zeros if it saw no tokens.
    pub fn write(&self, row: usize, l: f32, o: &[f32], out: usize) {
        let weight = if l == 0.0 { 1.0 } else { l };
        let to = at_mut::<u16>(out).wrapping_add(row * self.value_dim);
        for (dim, number) in o.iter().enumerate() {
            let bits = self.element().from_f32(number / weight);
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

//! What a call is about: dense tensors by address, shapes, and which rows see what.

use super::page::ACCUMULATORS;
use crate::error::value;
use pyo3::prelude::*;
use std::ops::Range;

/// As `kvtide.torch.ops` made it of tensors whose shapes it checked.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Given {
    /// `[tokens, heads, head_dim]`.
    pub query: usize,
    pub tokens: usize,
    /// `[frames, 2, kv_heads, page_tokens, head_dim]`, `frame_bytes` from one frame to the next.
    pub pages: usize,
    pub frames: usize,
    pub frame_bytes: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub page_tokens: usize,
    pub head_dim: usize,
    pub bf16: bool,
    /// Tokens of each sequence that attention covers, the queries' included; and where each one's queries begin.
    pub lengths: Vec<i64>,
    pub starts: Vec<usize>,
    pub scale: f64,
    /// Tokens that a query sees at most, itself included; 0: all before it.
    pub window: i64,
    /// `[tokens, heads, blocks, head_dim + 2]` f32: values, largest score, sum of weights. NaN where nothing was emitted.
    pub partials: usize,
    pub blocks: usize,
}

/// A query token, and the positions that it sees.
pub struct Row {
    pub token: usize,
    pub seen: Range<i64>,
}

impl Given {
    pub fn seqs(&self) -> usize {
        self.lengths.len()
    }

    /// Floats of a row of a page: its values, its largest score, its sum.
    pub fn row_floats(&self) -> usize {
        self.head_dim + 2
    }

    /// The query rows of a sequence for one KV head, with their heads.
    pub fn rows_of(&self, seq: usize, kv_head: usize) -> impl Iterator<Item = (Row, usize)> + '_ {
        let (from, to) = (self.starts[seq], self.starts[seq + 1]);
        let group = self.heads / self.kv_heads;
        (from..to).flat_map(move |token| {
            let limit = self.lengths[seq] - (to - token) as i64 + 1;
            let first = if self.window > 0 { (limit - self.window).max(0) } else { 0 };
            (kv_head * group..(kv_head + 1) * group).map(move |head| (Row { token, seen: first..limit }, head))
        })
    }

    /// Indices of the blocks that some query of a sequence sees.
    pub fn blocks_of(&self, seq: usize) -> Range<usize> {
        let (queries, length) = ((self.starts[seq + 1] - self.starts[seq]) as i64, self.lengths[seq]);
        let first = if self.window > 0 { (length - queries + 1 - self.window).max(0) as usize } else { 0 };
        let limit = if queries > 0 { length as usize } else { 0 };
        (first / self.page_tokens).min(limit.div_ceil(self.page_tokens))..limit.div_ceil(self.page_tokens)
    }

    /// Where the partial of a row and a page is.
    pub fn partial(&self, token: usize, head: usize, block: usize) -> *mut f32 {
        let index = ((token * self.heads + head) * self.blocks + block) * self.row_floats();
        std::ptr::with_exposed_provenance_mut::<f32>(self.partials).wrapping_add(index)
    }

    /// Holds the numbers against each other and `work` against the tensors: after it no address is out of them.
    ///
    /// # Errors
    /// `ValueError`, which says what differs.
    pub fn check(&self, work: &[[usize; 3]]) -> PyResult<()> {
        let (seqs, starts) = (self.lengths.len(), &self.starts);
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return Err(value(format!("{} query heads are no multiple of {} KV heads", self.heads, self.kv_heads)));
        }
        if self.page_tokens == 0 || !self.head_dim.is_multiple_of(ACCUMULATORS) {
            return Err(value(format!(
                "page_tokens {}, head_dim {}: not 0, and a multiple of 8",
                self.page_tokens, self.head_dim
            )));
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
            if *length < queries as i64 {
                return Err(value(format!(
                    "sequence {seq}: {length} tokens, but {queries} queries, which are its last"
                )));
            }
            let blocks = self.blocks_of(seq).end;
            if self.partials != 0 && blocks > self.blocks {
                return Err(value(format!("sequence {seq}: {blocks} pages, the workspace is for {}", self.blocks)));
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

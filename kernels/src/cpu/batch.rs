//! Queries of an attention call: shapes, visible positions, and the places of results.

use super::{Head, Pages, Rows, VectorUnit};
use crate::reference::Element;
use std::ops::Range;
use std::ptr::{with_exposed_provenance as at, with_exposed_provenance_mut as at_mut};

/// Vectors `[tokens][heads][dim]` of 16-bit numbers. The heads of a token are dense.
#[derive(Clone, Copy, Debug)]
pub struct Vectors {
    /// Address of the first number.
    pub at: usize,
    /// Distance from token to token in numbers.
    pub stride: usize,
}

/// Queries of several sequences over the pages of one plane.
#[derive(Debug)]
pub struct Batch {
    /// `[tokens][heads][head_dim]`.
    pub query: Vectors,
    /// `[tokens][heads][value_dim]`.
    pub out: Vectors,
    /// Query heads, a multiple of the KV heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Dimension of a key.
    pub head_dim: usize,
    /// Dimension of a value: that of a key, or for latent vectors less, because the value is the first part of the key.
    pub value_dim: usize,
    /// Type of all numbers.
    pub element: Element,
    /// Tokens of each sequence that attention covers, including the queries.
    pub lengths: Vec<usize>,
    /// The token where each sequence's queries begin, and the number of all.
    pub starts: Vec<usize>,
    /// Factor of the scores.
    pub scale: f64,
    /// Maximum tokens that a query sees, including itself; 0: all before it.
    pub window: usize,
}

/// Query tokens `tokens` of a sequence, for the query heads of KV head `head`. Rows are the heads of the first token, then those of
/// the next.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub seq: usize,
    pub head: usize,
    pub tokens: Range<usize>,
}

impl Batch {
    /// Return the number of sequences.
    #[must_use]
    pub fn seqs(&self) -> usize {
        self.lengths.len()
    }

    /// Return the number of query tokens of a sequence.
    #[must_use]
    pub fn queries(&self, seq: usize) -> usize {
        self.starts[seq + 1] - self.starts[seq]
    }

    /// Return the query heads of a KV head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Return true if a page has latent vectors: the value of a key is its first part.
    fn is_latent(&self) -> bool {
        self.value_dim != self.head_dim
    }

    /// Return the 16-bit numbers of a page.
    pub(super) fn page_numbers(&self) -> usize {
        let keys = self.kv_heads * self.page_tokens * self.head_dim;
        if self.is_latent() { keys } else { 2 * keys }
    }

    /// Return the shape of the pages for the kernels.
    pub(super) fn shape(&self) -> Pages {
        Pages {
            element: self.element,
            key: self.head_dim,
            value: self.value_dim,
            stride: self.head_dim,
            tokens: self.page_tokens,
            unit: VectorUnit::widest(),
        }
    }

    /// Return the addresses of a KV head in the page at an address.
    pub(super) fn head(&self, page: usize, head: usize) -> Head {
        let heads = self.page_tokens * self.head_dim;
        let keys = at::<u16>(page).wrapping_add(head * heads);
        let values = if self.is_latent() { keys } else { keys.wrapping_add(self.kv_heads * heads) };
        Head { keys, values }
    }

    /// Return the place of a unit's row: token of the batch, query head.
    fn place(&self, unit: &Unit, row: usize) -> (usize, usize) {
        let (token, head) = (row / self.group(), row % self.group());
        (self.starts[unit.seq] + unit.tokens.start + token, unit.head * self.group() + head)
    }

    /// Return one query.
    pub fn query(&self, token: usize, head: usize) -> impl ExactSizeIterator<Item = f32> {
        let from = at::<u16>(self.query.at).wrapping_add(token * self.query.stride + head * self.head_dim);
        // SAFETY: the caller's tensor has this shape. It belongs to torch: only the thread in this call could cause a write to it.
        let query = unsafe { std::slice::from_raw_parts(from, self.head_dim) };
        query.iter().map(|bits| self.element.to_f32(*bits))
    }

    /// Return a unit's queries with the positions that they see.
    pub(super) fn rows(&self, unit: &Unit) -> Rows {
        let mut rows = Rows::default();
        for row in 0..unit.tokens.len() * self.group() {
            let (token, head) = self.place(unit, row);
            let seen = self.seen(unit.seq, unit.tokens.start + row / self.group());
            rows.push(self.query(token, head), self.scale as f32, seen);
        }
        rows
    }

    /// Return the range of positions that a query token of a sequence sees.
    fn seen(&self, seq: usize, token: usize) -> (usize, usize) {
        let limit = (self.lengths[seq] + token + 1).saturating_sub(self.queries(seq));
        (if self.window == 0 { 0 } else { limit.saturating_sub(self.window) }, limit)
    }

    /// Return the indices of the blocks that some query of a sequence sees.
    #[must_use]
    pub fn needed(&self, seq: usize) -> Range<usize> {
        match self.queries(seq) {
            0 => 0..0,
            queries => {
                let ((first, _), (_, limit)) = (self.seen(seq, 0), self.seen(seq, queries - 1));
                first / self.page_tokens..limit.div_ceil(self.page_tokens)
            }
        }
    }

    /// Write the result of a unit's row: the sum of weighted values over the sum of weights, or zeros if it saw no tokens.
    pub(super) fn write(&self, unit: &Unit, row: usize, l: f32, o: &[f32]) {
        let (token, head) = self.place(unit, row);
        let weight = if l == 0.0 { 1.0 } else { l };
        let to = at_mut::<u16>(self.out.at).wrapping_add(token * self.out.stride + head * self.value_dim);
        for (dim, number) in o.iter().enumerate() {
            // SAFETY: the caller's output has `value_dim` numbers for each token and head, and no other thread writes this row.
            unsafe { to.wrapping_add(dim).write(self.element.from_f32(number / weight)) };
        }
    }

    /// Return the number of multiplications for a number of pairs of a row and a page.
    pub(super) fn multiplications(&self, pairs: usize) -> usize {
        pairs * self.page_tokens * (self.head_dim + self.value_dim)
    }

    /// Verify that the sizes fit together.
    ///
    /// # Errors
    /// The difference.
    pub fn check(&self, tokens: usize) -> Result<(), String> {
        let (seqs, starts) = (self.seqs(), &self.starts);
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) || self.page_tokens == 0 {
            return Err(format!(
                "{} query heads over {} KV heads, pages of {} tokens: heads must be a multiple of KV heads, and none may be 0",
                self.heads, self.kv_heads, self.page_tokens
            ));
        }
        if self.value_dim == 0 || self.value_dim > self.head_dim {
            return Err(format!("values of {} numbers do not fit in keys of {}", self.value_dim, self.head_dim));
        }
        let ordered = starts.first() == Some(&0) && starts.windows(2).all(|pair| pair[0] <= pair[1]);
        if starts.len() != seqs + 1 || !ordered || starts.last() != Some(&tokens) {
            return Err(format!(
                "q_starts {starts:?}: must rise from 0 to the {tokens} query tokens, with one more entry than the {seqs} sequences"
            ));
        }
        for (seq, length) in self.lengths.iter().enumerate() {
            let queries = self.queries(seq);
            if *length < queries {
                return Err(format!(
                    "sequence {seq}: {length} tokens are fewer than its {queries} queries, which are its last tokens"
                ));
            }
        }
        Ok(())
    }
}

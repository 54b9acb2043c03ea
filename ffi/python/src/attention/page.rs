//! One page against one query row, and the fold of such results.

use super::given::{Given, Row};
use half::{bf16, f16};

/// An element of 16 bits, as a number.
pub trait Element: Copy {
    fn number(self) -> f32;
    fn of(number: f64) -> Self;
}

impl Element for f16 {
    fn number(self) -> f32 {
        self.to_f32()
    }
    fn of(number: f64) -> f16 {
        f16::from_f64(number)
    }
}

impl Element for bf16 {
    fn number(self) -> f32 {
        self.to_f32()
    }
    fn of(number: f64) -> bf16 {
        bf16::from_f64(number)
    }
}

/// Accumulators of a dot product, so that it can be vectorised; the order of additions is part of the result.
pub const ACCUMULATORS: usize = 8;

/// The keys and values of one page and KV head, widened.
pub struct Page {
    keys: Vec<f32>,
    values: Vec<f32>,
    query: Vec<f32>,
    weights: Vec<f32>,
}

impl Page {
    pub fn new(given: &Given) -> Page {
        let numbers = given.page_tokens * given.head_dim;
        let zeros = |count| vec![0.0; count];
        let (query, weights) = (zeros(given.head_dim), zeros(given.page_tokens));
        Page { keys: zeros(numbers), values: zeros(numbers), query, weights }
    }

    /// Reads the page of `frame` for one KV head.
    pub fn load<E: Element>(&mut self, given: &Given, frame: usize, kv_head: usize) {
        let base = std::ptr::with_exposed_provenance::<u8>(given.pages).wrapping_add(frame * given.frame_bytes);
        let (base, numbers) = (base.cast::<E>(), self.keys.len());
        for (half, to) in [&mut self.keys, &mut self.values].into_iter().enumerate() {
            let from = base.wrapping_add((half * given.kv_heads + kv_head) * numbers);
            for (index, number) in to.iter_mut().enumerate() {
                // SAFETY: `check` held the frame against the tensor's frames, each of which holds two such halves.
                *number = unsafe { from.wrapping_add(index).read() }.number();
            }
        }
    }

    /// What the page gives a row: values, largest score, sum of weights. A row that sees none of it: zeros and −∞.
    pub fn row<E: Element>(&mut self, given: &Given, row: &Row, head: usize, block: usize, partial: &mut [f32]) {
        let (dims, tokens) = (given.head_dim, given.page_tokens as i64);
        let begin = block as i64 * tokens;
        let seen = (row.seen.start - begin).clamp(0, tokens) as usize..(row.seen.end - begin).clamp(0, tokens) as usize;
        partial.fill(0.0);
        partial[dims] = f32::NEG_INFINITY;
        if seen.is_empty() {
            return;
        }
        let from =
            std::ptr::with_exposed_provenance::<E>(given.query).wrapping_add((row.token * given.heads + head) * dims);
        for (dim, number) in self.query.iter_mut().enumerate() {
            // SAFETY: `check` bounded the token by the query tensor's, and the head by its heads.
            *number = unsafe { from.wrapping_add(dim).read() }.number();
        }
        let scale = given.scale as f32;
        let mut top = f32::NEG_INFINITY;
        for token in seen.clone() {
            let score = dot(&self.query, &self.keys[token * dims..][..dims]) * scale;
            self.weights[token] = score;
            top = top.max(score);
        }
        let mut sum = 0.0;
        for token in seen {
            let weight = (self.weights[token] - top).exp();
            sum += weight;
            for (value, number) in partial.iter_mut().zip(&self.values[token * dims..][..dims]) {
                *value += weight * number;
            }
        }
        // What is not a number must come out as such, and not be taken for a row that sees nothing.
        (partial[dims], partial[dims + 1]) = (if sum.is_nan() { 0.0 } else { top }, sum);
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; ACCUMULATORS];
    for (a, b) in a.chunks_exact(ACCUMULATORS).zip(b.chunks_exact(ACCUMULATORS)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

/// The pages of a row so far.
pub struct State {
    values: Vec<f64>,
    top: f64,
    sum: f64,
}

impl State {
    pub fn new(head_dim: usize) -> State {
        State { values: vec![0.0; head_dim], top: f64::NEG_INFINITY, sum: 0.0 }
    }

    /// Adds the next page, in index order.
    pub fn fold(&mut self, partial: &[f32]) {
        let dims = self.values.len();
        let (other, other_sum) = (f64::from(partial[dims]), f64::from(partial[dims + 1]));
        if other == f64::NEG_INFINITY {
            return; // the row sees nothing of it
        }
        let top = self.top.max(other);
        let (mine, theirs) = ((self.top - top).exp(), (other - top).exp());
        for (value, number) in self.values.iter_mut().zip(partial) {
            *value = *value * mine + f64::from(*number) * theirs;
        }
        (self.top, self.sum) = (top, self.sum * mine + other_sum * theirs);
    }

    /// The weighted mean of the values; zeros for a row that saw nothing.
    pub fn result(&self) -> impl Iterator<Item = f64> + '_ {
        let sum = if self.sum > 0.0 { self.sum } else { 1.0 };
        self.values.iter().map(move |value| value / sum)
    }
}

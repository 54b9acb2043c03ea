//! Paged attention in f64: whole, page by page, and merged in index order.

use super::Element;

/// Layout of keys and values in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `K[kv_heads][page_tokens][head_dim]`, then `V` likewise.
    Heads {
        /// Elements of a key, and of a value.
        head_dim: usize,
    },
    /// `[page_tokens][latent + rope]`: one vector per token; the whole vector is the key, its first `latent` elements are the value
    /// (MLA).
    Latent {
        /// Elements of a value.
        latent: usize,
        /// Elements that only keys have.
        rope: usize,
    },
}

impl Layout {
    /// Return the elements of a key, and of a query.
    #[must_use]
    pub fn key(self) -> usize {
        match self {
            Layout::Heads { head_dim } => head_dim,
            Layout::Latent { latent, rope } => latent + rope,
        }
    }

    /// Return the elements of a value, and of an output.
    #[must_use]
    pub fn value(self) -> usize {
        match self {
            Layout::Heads { head_dim } => head_dim,
            Layout::Latent { latent, .. } => latent,
        }
    }

    /// Return the elements of a page.
    #[must_use]
    pub fn page(self, kv_heads: usize, page_tokens: usize) -> usize {
        match self {
            Layout::Heads { head_dim } => 2 * kv_heads * page_tokens * head_dim,
            Layout::Latent { latent, rope } => page_tokens * (latent + rope),
        }
    }
}

/// A batch in plain memory.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Type of queries, keys and values.
    pub element: Element,
    /// How a page is laid out.
    pub layout: Layout,
    /// KV heads; 1 for [`Layout::Latent`].
    pub kv_heads: usize,
    /// Query heads of a KV head.
    pub group: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Maximum tokens that a query sees; 0: all.
    pub window: usize,
    /// Factor of scores before the softmax.
    pub scale: f64,
    /// `[tokens][kv_heads · group][key]`.
    pub q: &'a [u16],
    /// Frames, one every `page_stride` elements.
    pub pages: &'a [u16],
    /// Elements between two frames.
    pub page_stride: usize,
    /// `[seqs][table_stride]`: frame, or negative if not readable.
    pub block_table: &'a [i32],
    /// Columns of the table.
    pub table_stride: usize,
    /// Tokens that the last query of each sequence sees, itself included.
    pub lengths: &'a [i32],
    /// First query of each sequence, and the end.
    pub q_starts: &'a [usize],
}

/// Contribution of a set of tokens to one query: `l = Σ exp(score − m)`, `o = Σ exp(score − m) · value`. Without a token: (−∞, 0,
/// 0).
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// Largest score, scaled.
    pub m: f64,
    /// Sum of exponentials.
    pub l: f64,
    /// Sum of values.
    pub o: Vec<f64>,
}

impl Partial {
    /// Return the partial of no tokens.
    #[must_use]
    pub fn empty(dims: usize) -> Self {
        Self { m: f64::NEG_INFINITY, l: 0.0, o: vec![0.0; dims] }
    }

    /// Add another set's tokens.
    pub fn fold(&mut self, other: &Partial) {
        let m = self.m.max(other.m);
        if m == f64::NEG_INFINITY {
            return;
        }
        let (mine, theirs) = ((self.m - m).exp(), (other.m - m).exp());
        self.l = self.l * mine + other.l * theirs;
        for (o, other) in self.o.iter_mut().zip(&other.o) {
            *o = *o * mine + other * theirs;
        }
        self.m = m;
    }
}

/// Result of a batch.
#[derive(Clone, Debug)]
pub struct Output {
    /// `[tokens][heads][value]`; zeros if no token is seen.
    pub out: Vec<f64>,
    /// `[tokens][heads]`: natural logarithm of the sum of exponentials.
    pub lse: Vec<f64>,
    /// `[seqs]`: whether every page that the sequence needs was readable; otherwise its rows are zeros.
    pub emitted: Vec<bool>,
}

impl Attention<'_> {
    /// Return the number of sequences.
    #[must_use]
    pub fn seqs(&self) -> usize {
        self.lengths.len()
    }

    fn heads(&self) -> usize {
        self.kv_heads * self.group
    }

    /// Return the range of tokens that query `token` of sequence `seq` sees.
    #[must_use]
    pub fn seen(&self, seq: usize, token: usize) -> (usize, usize) {
        let queries = self.q_starts[seq + 1] - self.q_starts[seq];
        let length = usize::try_from(self.lengths[seq]).unwrap_or(0);
        let limit = (length + token + 1).saturating_sub(queries);
        let first = if self.window == 0 { 0 } else { limit.saturating_sub(self.window) };
        (first, limit)
    }

    /// Return the range of pages that some query of a sequence sees.
    #[must_use]
    pub fn needed(&self, seq: usize) -> std::ops::Range<usize> {
        let queries = self.q_starts[seq + 1] - self.q_starts[seq];
        let spans = (0..queries).map(|t| self.seen(seq, t)).filter(|(first, limit)| first < limit);
        let (first, limit) = spans.fold((usize::MAX, 0), |(f, l), (first, limit)| (f.min(first), l.max(limit)));
        if limit == 0 { 0..0 } else { first / self.page_tokens..limit.div_ceil(self.page_tokens) }
    }

    /// Return the frame of a page; `None` if it is not readable.
    #[must_use]
    pub fn frame(&self, seq: usize, page: usize) -> Option<usize> {
        usize::try_from(self.block_table[seq * self.table_stride + page]).ok()
    }

    /// Return the contribution of one page to one query and head; `None` if the page is not readable.
    #[must_use]
    pub fn page(&self, seq: usize, page: usize, token: usize, head: usize) -> Option<Partial> {
        let frame = self.frame(seq, page)?;
        let number = |bits: u16| f64::from(self.element.to_f32(bits));
        let (key, value) = (self.layout.key(), self.layout.value());
        let q = &self.q[((self.q_starts[seq] + token) * self.heads() + head) * key..][..key];
        let kv = &self.pages[frame * self.page_stride..];
        let kv_head = head / self.group;
        let (first, limit) = self.seen(seq, token);
        let begin = page * self.page_tokens;
        let mut tokens = vec![];
        for t in first.max(begin)..limit.min(begin + self.page_tokens) {
            let row = kv_head * self.page_tokens + t - begin;
            let (k, v) = match self.layout {
                Layout::Heads { .. } => (row * key, (self.kv_heads * self.page_tokens + row) * key),
                Layout::Latent { .. } => ((t - begin) * key, (t - begin) * key),
            };
            let score: f64 = q.iter().zip(&kv[k..k + key]).map(|(q, k)| number(*q) * number(*k)).sum();
            tokens.push((score * self.scale, v));
        }
        let mut partial = Partial::empty(value);
        partial.m = tokens.iter().fold(f64::NEG_INFINITY, |m, (score, _)| m.max(*score));
        for (score, v) in tokens {
            let p = (score - partial.m).exp();
            partial.l += p;
            for (o, v) in partial.o.iter_mut().zip(&kv[v..v + value]) {
                *o += p * number(*v);
            }
        }
        Some(partial)
    }

    /// Compute the whole batch, page by page, folded in index order.
    #[must_use]
    pub fn run(&self) -> Output {
        let (heads, value) = (self.heads(), self.layout.value());
        let tokens = self.q_starts.last().copied().unwrap_or(0);
        let mut output = Output {
            out: vec![0.0; tokens * heads * value],
            lse: vec![f64::NEG_INFINITY; tokens * heads],
            emitted: vec![true; self.seqs()],
        };
        for seq in 0..self.seqs() {
            if self.needed(seq).any(|page| self.frame(seq, page).is_none()) {
                output.emitted[seq] = false;
                continue;
            }
            for token in 0..self.q_starts[seq + 1] - self.q_starts[seq] {
                for head in 0..heads {
                    let mut sum = Partial::empty(value);
                    for page in self.needed(seq) {
                        if let Some(partial) = self.page(seq, page, token, head) {
                            sum.fold(&partial);
                        }
                    }
                    let row = (self.q_starts[seq] + token) * heads + head;
                    if sum.l > 0.0 {
                        for (out, o) in output.out[row * value..].iter_mut().zip(&sum.o) {
                            *out = o / sum.l;
                        }
                        output.lse[row] = sum.m + sum.l.ln();
                    }
                }
            }
        }
        output
    }

    /// Return each page's share of a sequence's attention, as (page, share), summed over queries and heads: the shares add up to 1.
    #[must_use]
    pub fn mass(&self, seq: usize, output: &Output) -> Vec<(usize, f64)> {
        let queries = self.q_starts[seq + 1] - self.q_starts[seq];
        let rows = (queries * self.heads()) as f64;
        let share = |page: usize| -> f64 {
            let of_row = |(token, head): (usize, usize)| {
                let lse = output.lse[(self.q_starts[seq] + token) * self.heads() + head];
                self.page(seq, page, token, head).filter(|p| p.l > 0.0).map_or(0.0, |p| (p.m - lse).exp() * p.l)
            };
            (0..queries).flat_map(|t| (0..self.heads()).map(move |h| (t, h))).map(of_row).sum::<f64>() / rows
        };
        self.needed(seq).map(|page| (page, share(page))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One token of weight e against one of weight 1, by hand.
    #[test]
    fn two_tokens_by_hand() {
        let bits = |x: f32| Element::Bf16.from_f32(x);
        let (one, zero) = (bits(1.0), bits(0.0));
        // One head of dim 2, pages of one token: K then V.
        let pages = [one, zero, bits(4.0), zero, zero, zero, zero, bits(2.0)];
        let attention = Attention {
            element: Element::Bf16,
            layout: Layout::Heads { head_dim: 2 },
            kv_heads: 1,
            group: 1,
            page_tokens: 1,
            window: 0,
            scale: 1.0,
            q: &[one, zero],
            pages: &pages,
            page_stride: 4,
            block_table: &[0, 1],
            table_stride: 2,
            lengths: &[2],
            q_starts: &[0, 1],
        };
        let output = attention.run();
        let e = std::f64::consts::E;
        assert!((output.out[0] - 4.0 * e / (e + 1.0)).abs() < 1e-12 && (output.out[1] - 2.0 / (e + 1.0)).abs() < 1e-12);
        assert!((output.lse[0] - (e + 1.0).ln()).abs() < 1e-12);
        let mass = attention.mass(0, &output);
        assert!((mass[0].1 - e / (e + 1.0)).abs() < 1e-12 && (mass[0].1 + mass[1].1 - 1.0).abs() < 1e-12);
        let absent = Attention { block_table: &[0, -1], ..attention };
        assert_eq!((absent.run().emitted, absent.run().out), (vec![false], vec![0.0, 0.0]));
        let windowed = Attention { window: 1, ..absent };
        assert_eq!(windowed.needed(0), 1..2);
    }
}

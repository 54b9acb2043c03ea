//! Attention of query rows over one page, and the fold over pages.

use super::VectorUnit;
use super::lanes::{LANES, Lanes, exp};
use crate::reference::Element;

/// Rows computed together, which share the loads of keys and values.
const TILE: usize = 4;

/// Shape of the pages.
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    /// Type of keys and values.
    pub element: Element,
    /// Elements of a key.
    pub key: usize,
    /// Elements of a value.
    pub value: usize,
    /// Elements from one token's key to the next, and from value to value.
    pub stride: usize,
    /// Tokens of a page.
    pub tokens: usize,
    /// Instructions to use.
    pub unit: VectorUnit,
}

/// Keys and values of one KV head in a page: addresses of those of the first token.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// `[tokens][key]`, one every `stride` elements.
    pub keys: *const u16,
    /// `[tokens][value]`, one every `stride` elements.
    pub values: *const u16,
}

/// Query rows of one KV head.
#[derive(Debug, Default)]
pub struct Rows {
    /// Scaled queries, each padded with zeros to a multiple of 16.
    queries: Vec<f32>,
    /// Range of token positions that each row sees.
    seen: Vec<(usize, usize)>,
}

impl Rows {
    /// Add a row: its query, the factor of its scores, and the positions that it sees, `first..limit`.
    pub fn push(&mut self, query: impl ExactSizeIterator<Item = f32>, scale: f32, seen: (usize, usize)) {
        let end = self.queries.len() + padded(query.len());
        self.queries.extend(query.map(|number| number * scale));
        self.queries.resize(end, 0.0);
        self.seen.push(seen);
    }

    /// Return the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// Return true if there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }
}

/// Contributions of a set of tokens to rows: `l = Σ exp(score − m)`, `o = Σ exp(score − m) · value`. A row without tokens has
/// (−∞, 0, 0).
#[derive(Clone, Debug)]
pub struct Partials {
    /// Largest score of each row.
    pub m: Vec<f32>,
    /// Sum of weights of each row.
    pub l: Vec<f32>,
    o: Vec<f32>,
    value: usize,
}

impl Partials {
    /// Create the partials of no tokens, for rows with `value` elements.
    #[must_use]
    pub fn new(rows: usize, value: usize) -> Partials {
        Partials { m: vec![f32::NEG_INFINITY; rows], l: vec![0.0; rows], o: vec![0.0; rows * padded(value)], value }
    }

    /// Return the sum of values of a row.
    #[must_use]
    pub fn o(&self, row: usize) -> &[f32] {
        &self.o[row * padded(self.value)..][..self.value]
    }

    /// Set a row.
    pub fn set(&mut self, row: usize, m: f32, l: f32, o: &[f32]) {
        (self.m[row], self.l[row]) = (m, l);
        self.o[row * padded(self.value)..][..self.value].copy_from_slice(o);
    }

    /// Add the tokens of others, row by row. The order of additions decides about the last bits.
    pub fn fold(&mut self, others: &Partials) {
        let width = padded(self.value);
        for row in 0..self.m.len() {
            let m = self.m[row].max(others.m[row]);
            if others.m[row] == f32::NEG_INFINITY {
                continue;
            }
            let (mine, theirs) = ((self.m[row] - m).exp(), (others.m[row] - m).exp());
            self.m[row] = m;
            // No fused operations: without the unit's instructions each would be a call.
            self.l[row] = self.l[row] * mine + others.l[row] * theirs;
            let (o, other) = (&mut self.o[row * width..][..width], &others.o[row * width..][..width]);
            for (o, other) in o.iter_mut().zip(other) {
                *o = *o * mine + other * theirs;
            }
        }
    }
}

/// Memory of one thread for one page in f32, and for scores.
#[derive(Debug, Default)]
pub struct Room {
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
}

/// Round up to whole vectors.
fn padded(count: usize) -> usize {
    count.next_multiple_of(LANES)
}

impl Pages {
    /// Compute the contribution of a page, whose first token has position `begin`, to all rows.
    ///
    /// # Safety
    /// `head` has `tokens` keys and values, and nobody writes them during the call. The unit was detected on this machine.
    pub unsafe fn partials(&self, head: Head, begin: usize, rows: &Rows, room: &mut Room, out: &mut Partials) {
        match self.unit {
            // SAFETY: the caller's contract.
            VectorUnit::Portable => unsafe { self.compute::<[f32; LANES]>(head, begin, rows, room, out) },
            // SAFETY: the caller's contract.
            #[cfg(target_arch = "x86_64")]
            VectorUnit::Avx2 => unsafe { self.avx2(head, begin, rows, room, out) },
            // SAFETY: the caller's contract.
            #[cfg(target_arch = "x86_64")]
            VectorUnit::Avx512 => unsafe { self.avx512(head, begin, rows, room, out) },
            #[cfg(not(target_arch = "x86_64"))]
            // SAFETY: the caller's contract.
            _ => unsafe { self.compute::<[f32; LANES]>(head, begin, rows, room, out) },
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2(&self, head: Head, begin: usize, rows: &Rows, room: &mut Room, out: &mut Partials) {
        // SAFETY: the caller's contract.
        unsafe { self.compute::<super::lanes::Avx2>(head, begin, rows, room, out) }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    unsafe fn avx512(&self, head: Head, begin: usize, rows: &Rows, room: &mut Room, out: &mut Partials) {
        // SAFETY: the caller's contract.
        unsafe { self.compute::<super::lanes::Avx512>(head, begin, rows, room, out) }
    }

    #[inline(always)]
    unsafe fn compute<V: Lanes>(&self, head: Head, begin: usize, rows: &Rows, room: &mut Room, out: &mut Partials) {
        let Room { keys, values, scores } = room;
        let end = begin + self.tokens;
        // Tokens of the page that some row sees.
        let first = rows.seen.iter().map(|seen| seen.0.clamp(begin, end)).min().unwrap_or(end) - begin;
        let limit = rows.seen.iter().map(|seen| seen.1.clamp(begin, end)).max().unwrap_or(begin) - begin;
        let tokens = first..limit.max(first);
        // SAFETY: the caller's contract.
        unsafe {
            self.widen::<V>(head.keys, self.key, tokens.clone(), keys);
            self.widen::<V>(head.values, self.value, tokens.clone(), values);
        }
        let (key, value, columns) = (padded(self.key), padded(self.value), padded(self.tokens));
        scores.resize(TILE * columns, 0.0);
        for tile in (0..rows.len()).step_by(TILE) {
            let count = TILE.min(rows.len() - tile);
            // A tile that is not full computes its last row several times.
            let queries: [&[f32]; TILE] =
                std::array::from_fn(|i| &rows.queries[(tile + i.min(count - 1)) * key..][..key]);
            scores.fill(f32::NEG_INFINITY);
            for token in tokens.clone() {
                // SAFETY: `keys` has `key` elements for each token of the range; so has each query.
                let found = unsafe { dots::<V>(queries, &keys[token * key..][..key]) };
                for (i, score) in found.into_iter().enumerate() {
                    scores[i * columns + token] = score;
                }
            }
            for i in 0..count {
                let seen = rows.seen[tile + i];
                let row = &mut scores[i * columns..][..columns];
                row[..(seen.0.clamp(begin, end)) - begin].fill(f32::NEG_INFINITY);
                row[(seen.1.clamp(begin, end)) - begin..].fill(f32::NEG_INFINITY);
                // SAFETY: whole vectors.
                (out.m[tile + i], out.l[tile + i]) = unsafe { weights::<V>(row) };
            }
            let o: &mut [f32] = &mut out.o[tile * value..][..count * value];
            for column in (0..value).step_by(LANES) {
                // SAFETY: `values` has `value` elements for each token of the range, and `scores` one for each row and token.
                let sums = unsafe { sums::<V>(scores, columns, &values[column..], value, tokens.clone()) };
                for (i, sum) in sums.into_iter().take(count).enumerate() {
                    // SAFETY: a whole vector of the row.
                    unsafe { sum.store(o[i * value + column..][..LANES].as_mut_ptr()) };
                }
            }
        }
    }

    /// Convert vectors of some tokens to f32, each padded with zeros.
    #[inline(always)]
    unsafe fn widen<V: Lanes>(
        &self,
        from: *const u16,
        count: usize,
        tokens: std::ops::Range<usize>,
        to: &mut Vec<f32>,
    ) {
        let width = padded(count);
        to.resize(self.tokens * width, 0.0);
        for token in tokens {
            let row = &mut to[token * width..][..width];
            let whole = count / LANES * LANES;
            for at in (0..whole).step_by(LANES) {
                // SAFETY: the caller's contract: the token's vector has `count` elements.
                unsafe {
                    V::widen(from.add(token * self.stride + at), self.element).store(row[at..][..LANES].as_mut_ptr())
                };
            }
            for (at, number) in row.iter_mut().enumerate().take(count).skip(whole) {
                // SAFETY: as above.
                *number = self.element.to_f32(unsafe { from.add(token * self.stride + at).read() });
            }
        }
    }
}

/// Return the products of queries with a key. All have whole vectors.
#[inline(always)]
unsafe fn dots<V: Lanes>(queries: [&[f32]; TILE], key: &[f32]) -> [f32; TILE] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [V::splat(0.0); TILE];
        for at in (0..key.len()).step_by(LANES) {
            let key = V::load(key.as_ptr().add(at));
            for (sum, query) in sums.iter_mut().zip(queries) {
                *sum = V::load(query.as_ptr().add(at)).fma(key, *sum);
            }
        }
        // No closure: only this function has the unit's instructions.
        let mut found = [0.0; TILE];
        for (found, sum) in found.iter_mut().zip(sums) {
            *found = sum.sum();
        }
        found
    }
}

/// Replace scores by weights `exp(score − m)`. Return the largest score and the sum of weights.
///
/// # Safety
/// The unit of `V` was detected on this machine; slices have whole vectors.
#[inline(always)]
unsafe fn weights<V: Lanes>(scores: &mut [f32]) -> (f32, f32) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut largest = V::splat(f32::NEG_INFINITY);
        for at in (0..scores.len()).step_by(LANES) {
            largest = largest.max(V::load(scores.as_ptr().add(at)));
        }
        let mut each = [0.0; LANES];
        largest.store(each.as_mut_ptr());
        let mut m = each.into_iter().fold(f32::NEG_INFINITY, f32::max);
        if m == f32::NEG_INFINITY {
            if !scores.iter().any(|score| score.is_nan()) {
                scores.fill(0.0);
                return (m, 0.0);
            }
            m = 0.0; // what is not a number is seen in the weights
        }
        let mut l = V::splat(0.0);
        for at in (0..scores.len()).step_by(LANES) {
            let to = scores.as_mut_ptr().add(at);
            let weight = exp(V::load(to).add(V::splat(-m)));
            weight.store(to);
            l = l.add(weight);
        }
        (m, l.sum())
    }
}

/// Return sums of weighted values for one vector of columns.
///
/// # Safety
/// The unit of `V` was detected on this machine; slices have whole vectors.
#[inline(always)]
unsafe fn sums<V: Lanes>(
    weights: &[f32],
    columns: usize,
    values: &[f32],
    width: usize,
    tokens: std::ops::Range<usize>,
) -> [V; TILE] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [V::splat(0.0); TILE];
        for token in tokens {
            let value = V::load(values.as_ptr().add(token * width));
            for (row, sum) in sums.iter_mut().enumerate() {
                *sum = V::splat(*weights.get_unchecked(row * columns + token)).fma(value, *sum);
            }
        }
        sums
    }
}

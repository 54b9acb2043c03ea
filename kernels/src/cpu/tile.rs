//! The loops over tokens: a tile of rows over one page, and its fold into the rows' sums.

use super::lanes::{BLOCK_MAX, LANES, Lanes, exp, prefetch};
use super::page::Partials;
use crate::reference::Element;
use std::ops::Range;

/// Rows computed together, which share the loads of keys and values.
pub(super) const TILE: usize = 4;

/// Keys or values of one KV head in a page, as numbers.
pub(super) trait Source: Copy {
    /// Load 16 elements of a token's vector.
    ///
    /// # Safety
    /// The vector has elements `at .. at + 16`, and the unit of `V` was detected on this machine.
    unsafe fn load<V: Lanes>(self, token: usize, at: usize) -> V;
}

/// 16-bit numbers in place, converted at each load.
#[derive(Clone, Copy)]
pub(super) struct Halves<const BF16: bool> {
    pub from: *const u16,
    pub stride: usize,
}

// SAFETY: the trait's contract.
impl<const BF16: bool> Source for Halves<BF16> {
    #[inline(always)]
    unsafe fn load<V: Lanes>(self, token: usize, at: usize) -> V {
        let element = if BF16 { Element::Bf16 } else { Element::F16 };
        // SAFETY: the caller's contract.
        unsafe { V::widen(self.from.add(token * self.stride + at), element) }
    }
}

/// Numbers that were converted before, each vector padded with zeros to `width` elements.
#[derive(Clone, Copy)]
pub(super) struct Wide {
    pub from: *const f32,
    pub width: usize,
}

// SAFETY: the trait's contract.
impl Source for Wide {
    #[inline(always)]
    unsafe fn load<V: Lanes>(self, token: usize, at: usize) -> V {
        // SAFETY: the caller's contract.
        unsafe { V::load(self.from.add(token * self.width + at)) }
    }
}

/// The page to read next, loaded into the cache meanwhile. A page's heads are too short for the processor to foresee.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// Addresses of the keys and of the values, and the bytes from one token to the next.
    pub from: [*const u8; 2],
    pub token_bytes: usize,
}

/// Tokens of the page that each row of a tile sees. A tile that is not full has its last row several times.
pub(super) struct Seen(pub [Range<usize>; TILE]);

impl Seen {
    /// Return the tokens from the first to the last that some row sees.
    fn some(&self) -> Range<usize> {
        let [first, limit] = [self.0.iter().map(|row| row.start).min(), self.0.iter().map(|row| row.end).max()];
        first.unwrap_or(0)..limit.unwrap_or(0)
    }

    /// Return the tokens that all rows see; an empty range at the end of `some` if there are none.
    fn all(&self, some: &Range<usize>) -> Range<usize> {
        let first = self.0.iter().map(|row| row.start).max().unwrap_or(some.end);
        let limit = self.0.iter().map(|row| row.end).min().unwrap_or(some.end);
        if first < limit { first..limit } else { some.end..some.end }
    }
}

/// Compute the partial results of a tile's rows into `out`, rows 0 to `TILE`. `scores` has room for a row of whole vectors per row.
///
/// # Safety
/// The unit of `V` was detected on this machine; the sources have the tokens that `seen` names, and each query `key` elements.
#[inline(always)]
pub(super) unsafe fn compute<V: Lanes, S: Source>(
    queries: [&[f32]; TILE],
    keys: S,
    values: S,
    seen: &Seen,
    ahead: Option<Ahead>,
    scores: &mut [f32],
    out: &mut Partials,
) {
    let (columns, width) = (scores.len() / TILE, out.width());
    let some = seen.some();
    let all = seen.all(&some);
    scores.fill(f32::NEG_INFINITY);
    for token in (some.start / V::BLOCK * V::BLOCK..some.end).step_by(V::BLOCK) {
        // SAFETY: the caller's contract.
        unsafe { dots::<V, S>(queries, keys, token, some.end, scores) };
        if let Some(Ahead { from, token_bytes }) = ahead {
            for from in from {
                prefetch(from.wrapping_add(token * token_bytes), V::BLOCK * token_bytes);
            }
        }
    }
    for (i, row) in scores.chunks_exact_mut(columns).enumerate() {
        row[..seen.0[i].start].fill(f32::NEG_INFINITY);
        row[seen.0[i].end..].fill(f32::NEG_INFINITY);
        // SAFETY: whole vectors.
        (out.m[i], out.l[i]) = unsafe { weights::<V>(row) };
    }
    for column in (0..width).step_by(V::BLOCK * LANES) {
        // SAFETY: the caller's contract.
        let mut sums = [[unsafe { V::splat(0.0) }; BLOCK_MAX]; TILE];
        // Past the last column, that one again.
        let at: [usize; BLOCK_MAX] = std::array::from_fn(|j| (column + j * LANES).min(width - LANES));
        // SAFETY: `scores` has an element for each row and token; the caller's contract.
        unsafe {
            add_values::<V, S, false>(&mut sums, scores, values, at, some.start..all.start, seen);
            add_values::<V, S, true>(&mut sums, scores, values, at, all.clone(), seen);
            add_values::<V, S, false>(&mut sums, scores, values, at, all.end..some.end, seen);
        }
        for (i, row) in sums.iter().enumerate() {
            for j in 0..V::BLOCK {
                // SAFETY: a whole vector of the row.
                unsafe { row[j].store(out.o[i * width + at[j]..][..LANES].as_mut_ptr()) };
            }
        }
    }
}

/// Write the scores of `V::BLOCK` tokens from `first` on. From `limit` on they are those of the last token before.
///
/// # Safety
/// As for [`compute`].
#[inline(always)]
unsafe fn dots<V: Lanes, S: Source>(queries: [&[f32]; TILE], keys: S, first: usize, limit: usize, scores: &mut [f32]) {
    let columns = scores.len() / TILE;
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [[V::splat(0.0); TILE]; BLOCK_MAX];
        for at in (0..queries[0].len()).step_by(LANES) {
            for (j, sums) in sums.iter_mut().enumerate().take(V::BLOCK) {
                let key: V = keys.load((first + j).min(limit - 1), at);
                for (sum, query) in sums.iter_mut().zip(queries) {
                    *sum = V::load(query.as_ptr().add(at)).fma(key, *sum);
                }
            }
        }
        let found = V::sums(&sums);
        for i in 0..TILE {
            scores[i * columns + first..][..V::BLOCK].copy_from_slice(&found[i][..V::BLOCK]);
        }
    }
}

/// Replace scores by weights `exp(score − m)`. Return the largest score and the sum of weights.
///
/// # Safety
/// The unit of `V` was detected on this machine; the slice has whole vectors.
#[inline(always)]
unsafe fn weights<V: Lanes>(scores: &mut [f32]) -> (f32, f32) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut largest = V::splat(f32::NEG_INFINITY);
        for at in (0..scores.len()).step_by(LANES) {
            largest = largest.max(V::load(scores.as_ptr().add(at)));
        }
        let mut m = largest.top();
        if m == f32::NEG_INFINITY || m.is_nan() {
            if !scores.iter().any(|score| score.is_nan()) {
                scores.fill(0.0);
                return (f32::NEG_INFINITY, 0.0);
            }
            m = 0.0; // The NaN reaches the weights; in a workspace, NaN as m marks a missing page.
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

/// Add the weighted values of some tokens, in the columns `at`. Unless all rows see all of them (`ALL`), a row takes its own alone:
/// a weight of 0 would not hide a value that is not finite.
///
/// # Safety
/// As for [`compute`]; `weights` has an element for each row and token.
#[inline(always)]
unsafe fn add_values<V: Lanes, S: Source, const ALL: bool>(
    sums: &mut [[V; BLOCK_MAX]; TILE],
    weights: &[f32],
    values: S,
    at: [usize; BLOCK_MAX],
    tokens: Range<usize>,
    seen: &Seen,
) {
    let columns = weights.len() / TILE;
    for token in tokens {
        for (i, sums) in sums.iter_mut().enumerate() {
            if !ALL && !seen.0[i].contains(&token) {
                continue;
            }
            // SAFETY: the caller's contract.
            unsafe {
                let weight = V::splat(*weights.get_unchecked(i * columns + token));
                for (sum, at) in sums.iter_mut().zip(at).take(V::BLOCK) {
                    *sum = weight.fma(values.load(token, at), *sum);
                }
            }
        }
    }
}

/// Add rows `from ..` of a page's partial results to rows `to ..` of the sums, `count` of them, at most a tile.
///
/// # Safety
/// The unit of `V` was detected on this machine.
#[inline(always)]
pub(super) unsafe fn fold<V: Lanes>(sum: &mut Partials, to: usize, page: &Partials, from: usize, count: usize) {
    // Exponents of the rows' own factors, then of the page's.
    let mut factors = [0.0; LANES];
    for i in 0..count {
        let (mine, theirs) = (sum.m[to + i], page.m[from + i]);
        let m = if mine > theirs { mine } else { theirs };
        (factors[i], factors[TILE + i]) = (mine - m, theirs - m);
    }
    // SAFETY: the caller's contract; `factors` is a whole vector.
    unsafe { exp(V::load(factors.as_ptr())).store(factors.as_mut_ptr()) };
    let width = sum.width();
    for i in 0..count {
        let (mine, theirs) = (factors[i], factors[TILE + i]);
        if page.m[from + i] == f32::NEG_INFINITY {
            continue;
        }
        sum.m[to + i] = if sum.m[to + i] > page.m[from + i] { sum.m[to + i] } else { page.m[from + i] };
        sum.l[to + i] = sum.l[to + i] * mine + page.l[from + i] * theirs;
        let o = &mut sum.o[(to + i) * width..][..width];
        let other = &page.o[(from + i) * width..][..width];
        for at in (0..width).step_by(LANES) {
            // SAFETY: the caller's contract; both rows have whole vectors.
            unsafe {
                let (o, other) = (o.as_mut_ptr().add(at), V::load(other.as_ptr().add(at)));
                let theirs = other.fma(V::splat(theirs), V::splat(0.0));
                V::load(o).fma(V::splat(mine), theirs).store(o);
            }
        }
    }
}

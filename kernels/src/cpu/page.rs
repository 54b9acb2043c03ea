//! Attention of query rows over one page, and the fold over pages.

use super::lanes::{LANES, Lanes};
use super::tile::{self, Ahead, Halves, Seen, Source, TILE, Wide};
use super::{Task, VectorUnit};
use crate::reference::Element;
use std::ops::Range;

/// Rows up to which 16-bit numbers are converted at each load: for more, one conversion of the page costs less.
const IN_PLACE_ROWS_MAX: usize = 2 * TILE;

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

    /// Return the tokens that a row sees of the `tokens` from position `begin` on.
    fn seen(&self, row: usize, begin: usize, tokens: usize) -> Range<usize> {
        let (first, limit) = self.seen[row];
        let inside = |position: usize| position.clamp(begin, begin + tokens) - begin;
        inside(first)..inside(limit)
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
    pub(super) o: Vec<f32>,
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

    /// Return the elements of a row of `o`: whole vectors.
    pub(super) fn width(&self) -> usize {
        padded(self.value)
    }

    /// Add the tokens of others, row by row. The order of additions decides about the last bits.
    pub fn fold(&mut self, unit: VectorUnit, others: &Partials) {
        // SAFETY: folding has no contract beyond that of the unit.
        unsafe { unit.run(Fold { sum: self, others }) }
    }
}

/// Fold of all rows.
struct Fold<'a> {
    sum: &'a mut Partials,
    others: &'a Partials,
}

// SAFETY: no contract beyond that of the unit.
impl Task for Fold<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        assert_eq!((self.sum.m.len(), self.sum.value), (self.others.m.len(), self.others.value));
        for row in (0..self.sum.m.len()).step_by(TILE) {
            let count = TILE.min(self.sum.m.len() - row);
            // SAFETY: the caller's contract.
            unsafe { tile::fold::<V>(self.sum, row, self.others, row, count) };
        }
    }
}

/// Memory of one thread for one page in f32, and for a tile of rows.
#[derive(Debug)]
pub struct Room {
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
    tile: Partials,
}

impl Default for Room {
    fn default() -> Room {
        Room { keys: Vec::new(), values: Vec::new(), scores: Vec::new(), tile: Partials::new(TILE, 0) }
    }
}

/// Round up to whole vectors.
fn padded(count: usize) -> usize {
    count.next_multiple_of(LANES)
}

impl Pages {
    /// Compute the contribution of a page, whose first token has position `begin`, to all rows.
    ///
    /// # Safety
    /// `head` has `tokens` keys and values, and nobody writes them during the call.
    pub unsafe fn partials(&self, head: Head, begin: usize, rows: &Rows, room: &mut Room) -> Partials {
        let mut out = Partials::new(rows.len(), self.value);
        // SAFETY: the caller's contract.
        unsafe { self.unit.run(Page { pages: self, head, next: None, begin, rows, room, out: &mut out, fold: false }) };
        out
    }

    /// Add the contributions of pages to `sum`, in their order: the first token of page `index` has position `index · tokens`. The bits
    /// are those of [`Pages::partials`] and [`Partials::fold`].
    ///
    /// # Safety
    /// As for [`Pages::partials`], for all pages.
    pub unsafe fn add(
        &self,
        pages: impl Iterator<Item = (usize, Head)>,
        rows: &Rows,
        room: &mut Room,
        sum: &mut Partials,
    ) {
        let mut pages = pages.peekable();
        while let Some((index, head)) = pages.next() {
            let (begin, next, out) = (index * self.tokens, pages.peek().map(|page| page.1), &mut *sum);
            // SAFETY: the caller's contract.
            unsafe { self.unit.run(Page { pages: self, head, next, begin, rows, room, out, fold: true }) };
        }
    }

    /// Convert vectors of some tokens to f32, each padded with zeros.
    #[inline(always)]
    unsafe fn widen<V: Lanes>(&self, from: *const u16, count: usize, tokens: Range<usize>, to: &mut Vec<f32>) -> Wide {
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
            row[count..].fill(0.0);
            for (at, number) in row.iter_mut().enumerate().take(count).skip(whole) {
                // SAFETY: as above.
                *number = self.element.to_f32(unsafe { from.add(token * self.stride + at).read() });
            }
        }
        Wide { from: to.as_ptr(), width }
    }
}

/// Contribution of a page to rows.
struct Page<'a> {
    pages: &'a Pages,
    head: Head,
    /// The page to read next.
    next: Option<Head>,
    begin: usize,
    rows: &'a Rows,
    room: &'a mut Room,
    out: &'a mut Partials,
    /// Add to `out`, else write to it.
    fold: bool,
}

// SAFETY: the contract is that of `Pages::partials`.
impl Task for Page<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(mut self) {
        let (Pages { key, value, stride, element, .. }, Head { keys, values }) = (*self.pages, self.head);
        let in_place = self.rows.len() <= IN_PLACE_ROWS_MAX && key % LANES == 0 && value % LANES == 0;
        // SAFETY: the caller's contract; in place, vectors are whole.
        unsafe {
            match (in_place, element) {
                (true, Element::Bf16) => {
                    let [keys, values] = [keys, values].map(|from| Halves::<true> { from, stride });
                    self.tiles::<V, _>(keys, values);
                }
                (true, Element::F16) => {
                    let [keys, values] = [keys, values].map(|from| Halves::<false> { from, stride });
                    self.tiles::<V, _>(keys, values);
                }
                (false, _) => {
                    let tokens = self.tokens();
                    let keys = self.pages.widen::<V>(keys, key, tokens.clone(), &mut self.room.keys);
                    let values = self.pages.widen::<V>(values, value, tokens, &mut self.room.values);
                    self.tiles::<V, _>(keys, values);
                }
            }
        }
    }
}

impl Page<'_> {
    /// Return the tokens from the first to the last that some row sees.
    fn tokens(&self) -> Range<usize> {
        let seen = (0..self.rows.len())
            .map(|row| self.rows.seen(row, self.begin, self.pages.tokens))
            .filter(|seen| !seen.is_empty());
        seen.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }

    /// Compute all rows, a tile at a time.
    ///
    /// # Safety
    /// The sources have the tokens that rows see; the unit of `V` was detected on this machine.
    #[inline(always)]
    unsafe fn tiles<V: Lanes, S: Source>(&mut self, keys: S, values: S) {
        let (rows, width) = (self.rows, padded(self.pages.key));
        let Room { scores, tile, .. } = &mut *self.room;
        scores.resize(TILE * padded(self.pages.tokens), 0.0);
        if tile.value != self.pages.value {
            *tile = Partials::new(TILE, self.pages.value);
        }
        let mut ahead = self.next.map(|head| Ahead {
            from: [head.keys.cast(), head.values.cast()],
            token_bytes: self.pages.stride * Element::BYTES,
        });
        for row in (0..rows.len()).step_by(TILE) {
            let count = TILE.min(rows.len() - row);
            // A tile that is not full computes its last row several times.
            let of = |i: usize| row + i.min(count - 1);
            let seen = Seen(std::array::from_fn(|i| rows.seen(of(i), self.begin, self.pages.tokens)));
            if self.fold && seen.0.iter().all(Range::is_empty) {
                continue;
            }
            let queries = std::array::from_fn(|i| &rows.queries[of(i) * width..][..width]);
            // SAFETY: the caller's contract.
            unsafe { tile::compute::<V, S>(queries, keys, values, &seen, ahead.take(), scores, tile) };
            if self.fold {
                // SAFETY: the caller's contract.
                unsafe { tile::fold::<V>(self.out, row, tile, 0, count) };
            } else {
                self.out.m[row..][..count].copy_from_slice(&tile.m[..count]);
                self.out.l[row..][..count].copy_from_slice(&tile.l[..count]);
                let value = tile.width();
                self.out.o[row * value..][..count * value].copy_from_slice(&tile.o[..count * value]);
            }
        }
    }
}

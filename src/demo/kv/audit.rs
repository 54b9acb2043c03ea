//! What a sequence on a device did not read, held against the same KV in a plain array of the host's, which attention never reads.
//!
//! The array has what the model made, in single precision; pages on a device have it in half. Shares of attention differ by less
//! than what is looked for.

use std::io;
use std::time::{Duration, Instant};

use kvtide_client::Omission;

use super::{KvStore, Omitted, Plain, Rows};
use crate::demo::attention::{HEAD_DIM, KV_HEADS, PAGE_TOKENS, Partial, Q_HEADS, split};

/// The array and what was found.
pub struct Audit {
    shadow: Plain,
    cells: Vec<Partial>,
    /// Maximum and sum of each page and query head.
    sums: Vec<[(f32, f32); Q_HEADS]>,
    omitted: Omitted,
    spent: Duration,
}

impl Audit {
    /// Room for a sequence of so many pages in a plane.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(planes: usize, pages: usize) -> io::Result<Audit> {
        Ok(Audit {
            shadow: Plain::new(planes, pages * PAGE_TOKENS)?,
            cells: vec![Partial::EMPTY; Q_HEADS],
            sums: Vec::with_capacity(pages),
            omitted: Omitted::default(),
            spent: Duration::ZERO,
        })
    }

    /// What was omitted so far.
    #[must_use]
    pub fn omitted(&self) -> Omitted {
        self.omitted
    }

    /// Time that this took.
    #[must_use]
    pub fn spent(&self) -> Duration {
        self.spent
    }

    /// A step begins.
    pub fn begin(&mut self, tokens: usize) {
        let Ok(()) = self.shadow.begin(tokens);
    }

    /// Keeps what a step's tokens bring to a plane.
    pub fn write(&mut self, plane: usize, rows: &Rows<'_>) {
        let began = Instant::now();
        let width = KV_HEADS * HEAD_DIM;
        for (t, (k, v)) in rows.k.chunks_exact(width).zip(rows.v.chunks_exact(width)).enumerate() {
            let (index, slot) = ((rows.start + t) / PAGE_TOKENS, (rows.start + t) % PAGE_TOKENS);
            let Ok(page) = self.shadow.tail(plane, index);
            page.write(slot, k, v);
        }
        self.spent += began.elapsed();
    }

    /// A step's token read these pages of a plane; the agent says what the others hold.
    pub fn read(&mut self, plane: usize, rows: &Rows<'_>, read: &[u32], said: Omission) {
        let began = Instant::now();
        self.sums.clear();
        let (sums, cells) = (&mut self.sums, &mut self.cells);
        let Ok(()) = self.shadow.visit(plane, |index, page| {
            split(page, index, rows.q, rows.start, cells);
            sums.push(std::array::from_fn(|head| (cells[head].max, cells[head].sum)));
        });
        let mut shares = [0.0f64; Q_HEADS];
        for (head, share) in shares.iter_mut().enumerate() {
            let most = self.sums.iter().map(|page| page[head].0).fold(f32::NEG_INFINITY, f32::max);
            let part = |(max, sum): (f32, f32)| f64::from(sum) * f64::from(max - most).exp();
            let all: f64 = self.sums.iter().map(|page| part(page[head])).sum();
            let seen: f64 =
                read.iter().filter_map(|index| self.sums.get(*index as usize)).map(|page| part(page[head])).sum();
            *share = (1.0 - seen / all).max(0.0);
        }
        self.omitted.add(said, &shares);
        self.spent += began.elapsed();
    }
}

//! Measurement of the attention that a sequence on a device skipped, from the same KV in a plain host array. Attention never reads
//! that array.
//!
//! The array has the model's single-precision values; pages on a device have half precision. The resulting error of attention
//! shares is smaller than the measured effects.

use std::io;
use std::time::{Duration, Instant};

use kvtide_client::Omission;

use super::{KvStore, Omitted, Plain, Rows};
use crate::demo::attention::{HEAD_DIM, KV_HEADS, PAGE_TOKENS, Partial, Q_HEADS, split};

/// The array and the results.
pub struct Audit {
    shadow: Plain,
    cells: Vec<Partial>,
    /// Maximum and sum of each page and query head.
    sums: Vec<[(f32, f32); Q_HEADS]>,
    omitted: Omitted,
    spent: Duration,
}

impl Audit {
    /// Allocate for a sequence of `pages` pages per plane.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn new(planes: usize, pages: usize) -> io::Result<Audit> {
        Ok(Audit {
            shadow: Plain::new(planes, pages * PAGE_TOKENS)?,
            cells: vec![Partial::EMPTY; Q_HEADS],
            sums: Vec::with_capacity(pages),
            omitted: Omitted::default(),
            spent: Duration::ZERO,
        })
    }

    /// Return the totals so far.
    #[must_use]
    pub fn omitted(&self) -> Omitted {
        self.omitted
    }

    /// Return the time spent.
    #[must_use]
    pub fn spent(&self) -> Duration {
        self.spent
    }

    /// Begin a step.
    pub fn begin(&mut self, tokens: usize) {
        let Ok(()) = self.shadow.begin(tokens);
    }

    /// Store the keys and values of a step's tokens in a plane.
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

    /// Add a plane of a step in which only these pages were read. `said` is the agent's figure for the others.
    pub fn read(&mut self, plane: usize, rows: &Rows<'_>, read: &[u32], said: Omission) {
        let began = Instant::now();
        self.sums.clear();
        let (sums, cells) = (&mut self.sums, &mut self.cells);
        let Ok(()) = self.shadow.visit(plane, |index, page| {
            split(&page.heads, index, rows.q, rows.start, cells);
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

//! Attention by units: some query tokens of a sequence with all query heads of one KV head.

use super::{Given, Work};
use kvtide_client::cuda::cpu::{self, Partials, Room, Rows};

/// Query rows of a unit at most, unless one token has more.
const ROWS_MAX: usize = 128;
/// Pages computed at once if there are fewer units than threads. Their partial results are kept until they are folded.
const PAGES_AT_ONCE: usize = 64;

/// Query tokens `tokens` of a sequence, for the query heads of KV head `head`. Rows are in the order of [`Given::row`].
#[derive(Clone, Debug)]
pub struct Unit {
    pub seq: usize,
    pub head: usize,
    pub tokens: std::ops::Range<usize>,
}

/// Contribution of a page to the rows of a unit: block index, largest scores, sums of weights.
pub type Seen = (usize, Vec<f32>, Vec<f32>);

impl Given {
    /// Return all units of a sequence.
    pub fn units(&self, seq: usize) -> Vec<Unit> {
        let queries = self.queries(seq);
        let step = (ROWS_MAX / self.group()).max(1);
        let blocks = (0..queries).step_by(step).map(|first| first..queries.min(first + step));
        blocks
            .flat_map(|tokens| (0..self.kv_heads()).map(move |head| Unit { seq, head, tokens: tokens.clone() }))
            .collect()
    }

    /// Compute the partial results of these pages into the workspace.
    pub fn pages(&self, work: &[Work]) {
        let units: Vec<Vec<(Unit, Rows)>> = (0..self.seqs()).map(|seq| self.with_rows(self.units(seq))).collect();
        let items: Vec<(&(Unit, Rows), usize, usize)> = work
            .iter()
            .flat_map(|&[seq, block, frame]| units[seq].iter().map(move |unit| (unit, block, frame)))
            .collect();
        let rows: usize = items.iter().map(|((_, rows), ..)| rows.len()).sum();
        cpu::map(&items, self.multiplications(rows), |room, &((unit, rows), block, frame)| {
            let partials = self.page(unit, rows, block, frame, room);
            for row in 0..rows.len() {
                self.keep(self.row(unit, row), block, &partials, row);
            }
        });
    }

    /// Merge all rows of the workspace. Return the first missing page, if there is one.
    pub fn merge(&self, out: usize) -> Option<(usize, usize)> {
        let units: Vec<Unit> = (0..self.seqs()).flat_map(|seq| self.units(seq)).collect();
        let shape = self.shape();
        let missing = cpu::map(&units, usize::MAX, |_, unit| {
            let rows = unit.tokens.len() * self.group();
            let (mut sum, mut page) = (Partials::new(rows, self.value_dim()), Partials::new(rows, self.value_dim()));
            for block in self.needed(unit.seq) {
                for row in 0..rows {
                    if !self.kept(self.row(unit, row), block, &mut page, row) {
                        return Some((unit.seq, block));
                    }
                }
                sum.fold(shape.unit, &page);
            }
            self.write_all(unit, &sum, out);
            None
        });
        missing.into_iter().flatten().min()
    }

    /// Compute attention over pages that are all readable; `frames` has those of each sequence's blocks.
    pub fn whole(&self, frames: &[Vec<usize>], out: usize) {
        let units = self.with_rows((0..self.seqs()).flat_map(|seq| self.units(seq)).collect());
        let (pages, shape) = (|unit: &Unit| self.needed(unit.seq).len(), self.shape());
        if units.len() >= cpu::threads() {
            let work: usize = units.iter().map(|(unit, rows)| rows.len() * pages(unit)).sum();
            cpu::map(&units, self.multiplications(work), |room, (unit, rows)| {
                let mut sum = Partials::new(rows.len(), self.value_dim());
                let pages = self.needed(unit.seq).map(|block| (block, self.head(frames[unit.seq][block], unit.head)));
                // SAFETY: as in `page`, for each of them.
                unsafe { shape.add(pages, rows, room, &mut sum) };
                self.write_all(unit, &sum, out);
            });
        } else {
            for (unit, rows) in &units {
                let sum = self.folded(unit, rows, &frames[unit.seq], &mut |_, _| ());
                self.write_all(unit, &sum, out);
            }
        }
    }

    /// Compute one unit, with its pages on several threads. `each` gets the contribution of each page, in index order.
    pub fn folded(
        &self,
        unit: &Unit,
        rows: &Rows,
        frames: &[usize],
        each: &mut dyn FnMut(usize, &Partials),
    ) -> Partials {
        let mut sum = Partials::new(rows.len(), self.value_dim());
        let (blocks, shape): (Vec<usize>, _) = (self.needed(unit.seq).collect(), self.shape());
        for some in blocks.chunks(PAGES_AT_ONCE) {
            let work = self.multiplications(some.len() * rows.len());
            let partials = cpu::map(some, work, |room, &block| self.page(unit, rows, block, frames[block], room));
            for (&block, page) in some.iter().zip(&partials) {
                each(block, page);
                sum.fold(shape.unit, page);
            }
        }
        sum
    }

    fn with_rows(&self, units: Vec<Unit>) -> Vec<(Unit, Rows)> {
        cpu::map(&units, usize::MAX, |_, unit| (unit.clone(), self.queries_of(unit)))
    }

    fn page(&self, unit: &Unit, rows: &Rows, block: usize, frame: usize, room: &mut Room) -> Partials {
        let (head, begin) = (self.head(frame, unit.head), block * self.page_tokens());
        // SAFETY: `check` verified that the frame is inside the tensor, and each frame holds a page. The lane's table has the page
        // there, so it is not overwritten before the lane's next boundary, which this call would have to return for.
        unsafe { self.shape().partials(head, begin, rows, room) }
    }

    /// Return the number of multiplications for a number of pairs of a row and a page.
    fn multiplications(&self, pairs: usize) -> usize {
        pairs * self.page_tokens() * (self.head_dim() + self.value_dim())
    }

    /// Write the results of a unit; zeros for rows that saw no tokens.
    pub fn write_all(&self, unit: &Unit, sum: &Partials, out: usize) {
        for row in 0..unit.tokens.len() * self.group() {
            self.write(self.row(unit, row), sum.l[row], sum.o(row), out);
        }
    }
}

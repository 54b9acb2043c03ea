//! Partials of a plane, and their combination in index order.

use super::{HEAD_DIM, PAGE_TOKENS, Partial, Q_HEADS};
use crate::demo::model::math::exp;

/// Partials of one plane of one step, `[pages][tokens][Q_HEADS]`, filled in any order.
pub struct Partials {
    cells: Vec<Partial>,
    row: usize,
}

impl Partials {
    /// Allocate for steps of up to `tokens` tokens that see up to `pages` pages.
    #[must_use]
    pub fn new(tokens: usize, pages: usize) -> Partials {
        Partials { cells: vec![Partial::EMPTY; tokens * pages * Q_HEADS], row: tokens * Q_HEADS }
    }

    /// Set the number of tokens of the next step.
    pub fn begin(&mut self, tokens: usize) {
        self.row = tokens * Q_HEADS;
    }

    /// Return the partials of the page at `index`.
    #[must_use]
    pub fn page(&self, index: usize) -> &[Partial] {
        &self.cells[index * self.row..][..self.row]
    }

    /// Return the partials of the page at `index`, for [`super::split`].
    pub fn page_mut(&mut self, index: usize) -> &mut [Partial] {
        &mut self.cells[index * self.row..][..self.row]
    }
}

/// Combine the partials of the tokens at positions `start`, … into `out[tokens][Q_HEADS × HEAD_DIM]`.
pub fn merge(partials: &Partials, start: usize, out: &mut [f32]) {
    for (row, out) in out.chunks_exact_mut(HEAD_DIM).enumerate() {
        let pages = (start + row / Q_HEADS) / PAGE_TOKENS + 1;
        let column = || partials.cells[row..].iter().step_by(partials.row).take(pages);
        let max = column().fold(f32::NEG_INFINITY, |max, p| max.max(p.max));
        let (mut sum, mut sums) = (0.0, [0.0; HEAD_DIM]);
        for p in column() {
            let weight = exp(p.max - max);
            sum += weight * p.sum;
            for (s, o) in sums.iter_mut().zip(&p.out) {
                *s += weight * o;
            }
        }
        for (o, s) in out.iter_mut().zip(&sums) {
            *o = s / sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{KV_HEADS, Page, split};
    use super::*;
    use zerocopy::FromZeros;

    fn value(i: usize) -> f32 {
        ((i * 2_654_435_761) % 2000) as f32 / 500.0 - 2.0
    }

    /// Return pages with known content up to `tokens` and NaN after it, since a frame may contain NaN.
    fn pages(tokens: usize) -> Vec<Page> {
        let mut pages: Vec<Page> = (0..tokens.div_ceil(PAGE_TOKENS)).map(|_| Page::new_zeroed()).collect();
        for slot in 0..pages.len() * PAGE_TOKENS {
            let row = |salt: usize| -> Vec<f32> {
                let written = |i| if slot < tokens { value(slot * 977 + i * 31 + salt) } else { f32::NAN };
                (0..KV_HEADS * HEAD_DIM).map(written).collect()
            };
            pages[slot / PAGE_TOKENS].write(slot % PAGE_TOKENS, &row(1), &row(2));
        }
        pages
    }

    fn queries(start: usize, tokens: usize) -> Vec<f32> {
        let width = Q_HEADS * HEAD_DIM;
        (start * width..(start + tokens) * width).map(|i| value(i + 5) / 4.0).collect()
    }

    fn attend(pages: &[Page], start: usize, tokens: usize, order: impl Iterator<Item = usize>) -> Vec<f32> {
        let queries = queries(start, tokens);
        let mut partials = Partials::new(tokens, pages.len());
        for index in order {
            split(&pages[index].heads, index, &queries, start, partials.page_mut(index));
        }
        let mut out = vec![0.0; queries.len()];
        merge(&partials, start, &mut out);
        out
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| v.to_bits()).collect()
    }

    #[test]
    fn agrees_with_attention_written_down_directly() {
        let (start, tokens) = (100, 70);
        let pages = pages(start + tokens);
        let found = attend(&pages, start, tokens, 0..pages.len());
        let queries = queries(start, tokens);
        for t in 0..tokens {
            for h in 0..Q_HEADS {
                let q = &queries[(t * Q_HEADS + h) * HEAD_DIM..][..HEAD_DIM];
                let head = |j: usize| &pages[j / PAGE_TOKENS].heads[h * KV_HEADS / Q_HEADS];
                let weight = |j: usize| {
                    let score = |d: usize| f64::from(q[d]) * f64::from(head(j).key(j % PAGE_TOKENS, d));
                    (0..HEAD_DIM).map(score).sum::<f64>().exp()
                };
                let weights: Vec<f64> = (0..=start + t).map(weight).collect();
                let total: f64 = weights.iter().sum();
                for d in 0..HEAD_DIM {
                    let value = |j: usize| weights[j] * f64::from(head(j).value(j % PAGE_TOKENS, d));
                    let exact = (0..=start + t).map(value).sum::<f64>() / total;
                    let found = f64::from(found[(t * Q_HEADS + h) * HEAD_DIM + d]);
                    assert!((found - exact).abs() < 1e-5, "token {t} head {h} channel {d}: {found} for {exact}");
                }
            }
        }
    }

    #[test]
    fn neither_order_nor_chunk_changes_a_bit() {
        let (start, tokens) = (150, 130);
        let pages = pages(start + tokens);
        let forwards = attend(&pages, start, tokens, 0..pages.len());
        assert_eq!(bits(&forwards), bits(&attend(&pages, start, tokens, (0..pages.len()).rev())));
        let one_by_one: Vec<f32> =
            (start..start + tokens).flat_map(|t| attend(&pages, t, 1, 0..t / PAGE_TOKENS + 1)).collect();
        assert_eq!(bits(&forwards), bits(&one_by_one));
    }

    #[test]
    fn one_flipped_bit_in_a_key_or_value_shows() {
        let (start, tokens) = (150, 2);
        let mut pages = pages(start + tokens);
        let before = attend(&pages, start, tokens, 0..pages.len());
        pages[1].heads[1].flip(20, 7, 1 << 20);
        assert_ne!(bits(&before), bits(&attend(&pages, start, tokens, 0..pages.len())));
    }
}

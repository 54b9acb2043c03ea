//! Matrix product with a weight matrix that is packed once for its access pattern.

/// Output columns of a panel.
const PANEL: usize = 16;
/// Rows (tokens) that share one read of a panel.
const ROWS: usize = 4;
/// From this number of rows on, a second thread computes half of them. A smaller product takes less time than a thread needs to start.
const ROWS_SHARED: usize = 32;

/// A weight matrix `[outputs, inputs]`, stored as panels of [`PANEL`] outputs, `[inputs][PANEL]` each; the last one is padded with
/// zeros.
pub(super) struct Linear {
    panels: Vec<[f32; PANEL]>,
    inputs: usize,
    outputs: usize,
}

impl Linear {
    /// Pack row-major `[outputs, inputs]`.
    pub(super) fn new(weight: &[f32], outputs: usize, inputs: usize) -> Linear {
        assert_eq!(weight.len(), outputs * inputs, "the caller checked the tensor's shape");
        let mut panels = vec![[0.0; PANEL]; outputs.div_ceil(PANEL) * inputs];
        for (output, row) in weight.chunks_exact(inputs).enumerate() {
            for (input, w) in row.iter().enumerate() {
                panels[output / PANEL * inputs + input][output % PANEL] = *w;
            }
        }
        Linear { panels, inputs, outputs }
    }

    /// Compute `out[rows, outputs] = x[rows, inputs] × weightᵀ`. Each element is a sum over the inputs in order, for any number of
    /// rows.
    pub(super) fn apply(&self, x: &[f32], out: &mut [f32]) {
        let rows = x.len() / self.inputs;
        assert_eq!((x.len(), out.len()), (rows * self.inputs, rows * self.outputs), "row-major operands");
        if rows < ROWS_SHARED {
            return self.rows(x, out);
        }
        let half = (rows / 2).next_multiple_of(ROWS);
        let (x, rest) = x.split_at(half * self.inputs);
        let (out, out_rest) = out.split_at_mut(half * self.outputs);
        std::thread::scope(|scope| {
            scope.spawn(|| self.rows(rest, out_rest));
            self.rows(x, out);
        });
    }

    fn rows(&self, x: &[f32], out: &mut [f32]) {
        let rows = x.len() / self.inputs;
        for (p, panel) in self.panels.chunks_exact(self.inputs).enumerate() {
            let mut row = 0;
            while row + ROWS <= rows {
                self.tile::<ROWS>(panel, p, row, x, out);
                row += ROWS;
            }
            while row < rows {
                self.tile::<1>(panel, p, row, x, out);
                row += 1;
            }
        }
    }

    #[inline(always)]
    fn tile<const R: usize>(&self, panel: &[[f32; PANEL]], p: usize, row: usize, x: &[f32], out: &mut [f32]) {
        let xs: [&[f32]; R] = std::array::from_fn(|r| &x[(row + r) * self.inputs..][..panel.len()]);
        let mut sums = [[0.0; PANEL]; R];
        for (k, w) in panel.iter().enumerate() {
            for r in 0..R {
                let v = xs[r][k];
                for (sum, w) in sums[r].iter_mut().zip(w) {
                    *sum += v * w;
                }
            }
        }
        let first = p * PANEL;
        let width = PANEL.min(self.outputs - first);
        for (r, sums) in sums.iter().enumerate() {
            out[(row + r) * self.outputs + first..][..width].copy_from_slice(&sums[..width]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_plain_loops_for_any_number_of_rows() {
        let (outputs, inputs) = (37, 24); // a padded panel
        let value = |i: usize| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0;
        let weight: Vec<f32> = (0..outputs * inputs).map(value).collect();
        let linear = Linear::new(&weight, outputs, inputs);
        for rows in (1..=9).chain([32, 35]) {
            let x: Vec<f32> = (0..rows * inputs).map(|i| value(i + 7)).collect();
            let mut out = vec![f32::NAN; rows * outputs];
            linear.apply(&x, &mut out);
            for r in 0..rows {
                for o in 0..outputs {
                    let mut sum = 0.0;
                    for k in 0..inputs {
                        sum += x[r * inputs + k] * weight[o * inputs + k];
                    }
                    assert_eq!(out[r * outputs + o].to_bits(), f32::to_bits(sum), "row {r} of {rows}, output {o}");
                }
            }
        }
    }
}

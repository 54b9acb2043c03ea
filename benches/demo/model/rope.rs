//! Rotary position embedding (rotate-half) from a table.

use crate::demo::attention::HEAD_DIM;

const HALF: usize = HEAD_DIM / 2;

/// Cosines and sines of every position, `[positions][HALF]` each.
pub(super) struct Rope {
    cos: Vec<[f32; HALF]>,
    sin: Vec<[f32; HALF]>,
}

impl Rope {
    pub(super) fn new(theta: f64, positions: usize) -> Rope {
        let angle = |position: usize, i: usize| position as f64 * theta.powf(-(i as f64) / HALF as f64);
        let table =
            |f: fn(f64) -> f64| (0..positions).map(|p| std::array::from_fn(|i| f(angle(p, i)) as f32)).collect();
        Rope { cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// Rotate the heads of one token's row in place.
    pub(super) fn rotate(&self, position: usize, row: &mut [f32]) {
        let (cos, sin) = (&self.cos[position], &self.sin[position]);
        for head in row.chunks_exact_mut(HEAD_DIM) {
            let (low, high) = head.split_at_mut(HALF);
            for i in 0..HALF {
                let (a, b) = (low[i], high[i]);
                low[i] = a * cos[i] - b * sin[i];
                high[i] = b * cos[i] + a * sin[i];
            }
        }
    }
}

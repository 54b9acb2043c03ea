//! Bit for bit: the only way in which logits are equal here.

use serde::{Deserialize, Serialize};

/// The logits of a whole run, `[tokens][vocabulary]`.
pub struct Logits {
    rows: Vec<f32>,
    vocabulary: usize,
}

impl Logits {
    /// Room for `tokens` tokens.
    #[must_use]
    pub fn new(tokens: usize, vocabulary: usize) -> Logits {
        Logits { rows: vec![f32::NAN; tokens * vocabulary], vocabulary }
    }

    /// Keeps the rows of the positions from `start`.
    pub fn keep(&mut self, start: usize, rows: &[f32]) {
        self.rows[start * self.vocabulary..][..rows.len()].copy_from_slice(rows);
    }

    /// Keeps rows in the place of others; returns how far they are apart at most. A logit that is no number is infinitely far.
    pub fn replace(&mut self, start: usize, rows: &[f32]) -> f32 {
        let before = &self.rows[start * self.vocabulary..][..rows.len()];
        let distance = |(a, b): (&f32, &f32)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() };
        let furthest = before.iter().zip(rows).map(distance).fold(0.0, f32::max);
        self.keep(start, rows);
        furthest
    }

    /// Holds other logits of the same positions against these.
    pub fn compare(&self, start: usize, rows: &[f32], verdict: &mut Verdict) {
        let expected = &self.rows[start * self.vocabulary..][..rows.len()];
        verdict.compared += rows.len() as u64;
        for (i, (expected, found)) in expected.iter().zip(rows).enumerate() {
            if expected.to_bits() != found.to_bits() {
                let (position, token) = (start + i / self.vocabulary, i % self.vocabulary);
                verdict.different += 1;
                verdict.first.get_or_insert(Difference { position, token, expected: *expected, found: *found });
            }
        }
    }
}

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Logits compared.
    pub compared: u64,
    /// Of them, those with other bits.
    pub different: u64,
    /// The first of those.
    pub first: Option<Difference>,
}

/// A logit with other bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Position in the sequence.
    pub position: usize,
    /// Token whose logit it is.
    pub token: usize,
    /// The reference's.
    pub expected: f32,
    /// The run's.
    pub found: f32,
}

impl Verdict {
    /// Whether `logits` were compared and none differed.
    #[must_use]
    pub fn identical(&self, logits: usize) -> bool {
        self.compared == logits as u64 && self.different == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bit_of_one_logit_counts() {
        let mut kept = Logits::new(3, 4);
        kept.keep(1, &[0.5; 8]);
        let mut verdict = Verdict::default();
        kept.compare(1, &[0.5; 4], &mut verdict);
        assert!(verdict.identical(4) && !verdict.identical(8), "what was not compared is not identical");
        let mut found = [0.5_f32; 4];
        found[2] = f32::from_bits(found[2].to_bits() ^ 1);
        kept.compare(2, &found, &mut verdict);
        assert!(!verdict.identical(8));
        let first = verdict.first.clone().unwrap();
        assert_eq!((verdict.different, first.position, first.token), (1, 2, 2));
    }

    #[test]
    fn zeros_of_both_signs_differ_and_equal_nans_do_not() {
        let mut kept = Logits::new(1, 2);
        kept.keep(0, &[0.0, f32::NAN]);
        let mut verdict = Verdict::default();
        kept.compare(0, &[-0.0, f32::NAN], &mut verdict);
        assert_eq!(verdict.different, 1);
    }
}

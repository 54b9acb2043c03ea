//! Bit-exact comparison of logits.

use serde::{Deserialize, Serialize};

/// Logits of a whole run, `[tokens][vocabulary]`.
pub struct Logits {
    rows: Vec<f32>,
    vocabulary: usize,
}

impl Logits {
    /// Allocate for `tokens` tokens.
    #[must_use]
    pub fn new(tokens: usize, vocabulary: usize) -> Logits {
        Logits { rows: vec![f32::NAN; tokens * vocabulary], vocabulary }
    }

    /// Store the rows of the positions from `start`.
    pub fn keep(&mut self, start: usize, rows: &[f32]) {
        self.rows[start * self.vocabulary..][..rows.len()].copy_from_slice(rows);
    }

    /// Replace rows. Return their maximum distance from the previous ones; a NaN counts as infinitely far.
    pub fn replace(&mut self, start: usize, rows: &[f32]) -> f32 {
        let before = &self.rows[start * self.vocabulary..][..rows.len()];
        let distance = |(a, b): (&f32, &f32)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() };
        let furthest = before.iter().zip(rows).map(distance).fold(0.0, f32::max);
        self.keep(start, rows);
        furthest
    }

    /// Add the distance between the predictions of other logits of one position and of these to `drift`.
    pub fn drift(&self, position: usize, found: &[f32], drift: &mut Drift) {
        let expected = &self.rows[position * self.vocabulary..][..found.len()];
        let best = |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(token, _)| token);
        let ln_sum = |row: &[f32]| {
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            f64::from(most) + row.iter().map(|l| f64::from(l - most).exp()).sum::<f64>().ln()
        };
        let (p, q) = (ln_sum(expected), ln_sum(found));
        let part = |(e, f): (&f32, &f32)| {
            let (e, f) = (f64::from(*e) - p, f64::from(*f) - q);
            e.exp() * (e - f)
        };
        drift.tokens += 1;
        drift.same_choice += u64::from(best(expected) == best(found));
        drift.kl += expected.iter().zip(found).map(part).sum::<f64>();
        let likelihood = |row: &[f32], sum: f64| best(expected).map_or(0.0, |token| f64::from(row[token]) - sum);
        drift.loss += likelihood(expected, p) - likelihood(found, q);
    }

    /// Compare other logits of the same positions with these.
    pub fn compare(&self, start: usize, rows: &[f32], comparison: &mut Comparison) {
        let expected = &self.rows[start * self.vocabulary..][..rows.len()];
        comparison.add(expected, rows, start, self.vocabulary);
    }
}

/// Result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Logits compared.
    pub compared: u64,
    /// Logits that differ in any bit.
    pub different: u64,
    /// The first difference.
    pub first: Option<Difference>,
}

/// Distance between the predictions of a run and of the reference, over the same tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// Tokens predicted.
    pub tokens: u64,
    /// Tokens predicted with the same most likely value as the reference.
    pub same_choice: u64,
    /// Sum of the Kullback-Leibler divergence from the reference, in nats.
    pub kl: f64,
    /// Sum of the decrease in log-likelihood of the reference's choices, in nats: the increase of the loss on its text.
    pub loss: f64,
}

/// A logit that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Position in the sequence.
    pub position: usize,
    /// Token of the logit.
    pub token: usize,
    /// Value in the reference.
    pub expected: f32,
    /// Value in the run.
    pub found: f32,
}

impl Comparison {
    /// Compare rows of logits with those expected, from position `start` on.
    pub fn add(&mut self, expected: &[f32], found: &[f32], start: usize, vocabulary: usize) {
        self.compared += found.len() as u64;
        for (i, (expected, found)) in expected.iter().zip(found).enumerate() {
            if expected.to_bits() != found.to_bits() {
                let (position, token) = (start + i / vocabulary, i % vocabulary);
                self.different += 1;
                self.first.get_or_insert(Difference { position, token, expected: *expected, found: *found });
            }
        }
    }

    /// Return true if `logits` logits were compared and none differed.
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
        let mut comparison = Comparison::default();
        kept.compare(1, &[0.5; 4], &mut comparison);
        assert!(comparison.identical(4) && !comparison.identical(8), "logits that were not compared are not identical");
        let mut found = [0.5_f32; 4];
        found[2] = f32::from_bits(found[2].to_bits() ^ 1);
        kept.compare(2, &found, &mut comparison);
        assert!(!comparison.identical(8));
        let first = comparison.first.clone().unwrap();
        assert_eq!((comparison.different, first.position, first.token), (1, 2, 2));
    }

    #[test]
    fn drift_is_what_the_predictions_differ_by() {
        let mut kept = Logits::new(2, 2);
        kept.keep(0, &[0.0, 0.0, 5.0, 1.0]);
        let mut drift = Drift::default();
        kept.drift(1, &[7.0, 3.0], &mut drift);
        assert!(
            drift.same_choice == 1 && drift.kl.abs() < 1e-6,
            "a constant added to all logits changes nothing: {drift:?}"
        );
        kept.drift(0, &[0.0, 3f32.ln()], &mut drift);
        // ½ ln(½ ÷ ¼) + ½ ln(½ ÷ ¾)
        assert!((drift.kl - 0.5 * (4f64 / 3.0).ln()).abs() < 1e-6, "{drift:?}");
        // Of two equally likely tokens the last is the choice: ln ½ − ln ¾.
        assert!((drift.loss - (0.5f64 / 0.75).ln()).abs() < 1e-6, "{drift:?}");
        kept.drift(1, &[0.0, 1.0], &mut drift);
        assert_eq!((drift.tokens, drift.same_choice), (3, 2));
    }

    #[test]
    fn zeros_of_both_signs_differ_and_equal_nans_do_not() {
        let mut kept = Logits::new(1, 2);
        kept.keep(0, &[0.0, f32::NAN]);
        let mut comparison = Comparison::default();
        kept.compare(0, &[-0.0, f32::NAN], &mut comparison);
        assert_eq!(comparison.different, 1);
    }
}

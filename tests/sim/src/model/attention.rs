//! A model of attention: a few pages hold most of it, and they change every few steps.

use super::needed;
use crate::base::mix;
use kvtide_wire::geometry::Plane;
use std::ops::Range;

/// Steps for which attention stays on a set of pages.
const DWELL: u64 = 6;
/// One page in this many holds much of it.
const SPARSE: u64 = 6;
/// Its share relative to another page.
const MUCH: f32 = 40.0;

/// Shares of attention of one step in a plane, by page from the first needed page on.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    /// Pages that attention needs.
    pub pages: Range<u32>,
    /// Share of each of them, summing to one.
    pub shares: Vec<f32>,
}

/// Return the attention of sequence `seq` in plane `plane` at `step`, with `tokens` tokens.
#[must_use]
pub fn attention(spec: &Plane, (seq, plane, step): (u64, u16, u64), tokens: u64, page_tokens: u32) -> Shares {
    let pages = needed(spec, tokens, page_tokens);
    let place = mix(mix(seq, plane.into()), (step + seq) / DWELL);
    let weight = |index: u32| match mix(place, index.into()) % SPARSE {
        0 => MUCH,
        _ => 1.0,
    };
    let sum: f32 = pages.clone().map(weight).sum();
    Shares { shares: pages.clone().map(|index| weight(index) / sum).collect(), pages }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_sum_to_one_and_move_on() {
        let full = Plane::full(0);
        let at = |step| attention(&full, (3, 1, step), 100, 2);
        let now = at(0);
        assert_eq!((now.pages.clone(), now.shares.len()), (0..50, 50));
        assert!((now.shares.iter().sum::<f32>() - 1.0).abs() < 1e-3);
        assert_eq!(at(0).shares, now.shares);
        assert!((1..20).any(|step| at(step).shares != now.shares));
        assert!(attention(&full, (0, 0, 0), 0, 2).shares.is_empty());
    }
}

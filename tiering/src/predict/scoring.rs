//! Rankings of pages from prior work, by name.

use kvtide_types::Scoring;

/// Digests that give the estimates in `Query` and `Ahead` entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Estimate {
    /// None are used.
    None,
    /// A bound from channelwise minima and maxima.
    Box,
    /// The product with the centre, raised by the radius.
    Ball,
    /// Sketches: groups of keys.
    Sketch,
}

impl Estimate {
    /// Return the digest estimate that a ranking needs.
    #[must_use]
    pub fn of(scoring: Scoring) -> Estimate {
        match scoring {
            Scoring::Streaming | Scoring::H2o | Scoring::SnapKv => Estimate::None,
            Scoring::Quest => Estimate::Box,
            Scoring::ArkVale => Estimate::Ball,
            Scoring::Attention => Estimate::Sketch,
        }
    }
}

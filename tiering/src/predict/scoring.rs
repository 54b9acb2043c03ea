//! Rankings of pages from prior work, by name.

use serde::{Deserialize, Serialize};

/// Kind of a score entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Shares of attention that step `step` gave to the pages that it read.
    Mass,
    /// Shares that digests estimate for the query of step `step`; reported before its `Mass`, or not at all.
    Query,
    /// Shares that digests estimate for a guess of the query of step `step`; reported before the plane's attention runs.
    Ahead,
}

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

/// How pages are ranked. In every ranking the planner keeps the sinks, recent pages and the tail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scoring {
    /// Sinks and the most recent pages (StreamingLLM, arXiv 2309.17453).
    Streaming,
    /// Attention accumulated while the page was read (H2O, arXiv 2306.14048).
    H2o,
    /// Attention pooled over a window of queries (SnapKV, arXiv 2404.14469); the window moves with decode.
    SnapKv,
    /// The latest query's min/max digest scores (Quest, arXiv 2406.10774).
    Quest,
    /// The latest query's centre and radius scores (ArkVale, NeurIPS 2024).
    ArkVale,
    /// All signals, with weights fitted online.
    #[default]
    Attention,
}

impl Scoring {
    /// All rankings.
    pub const ALL: [Scoring; 6] =
        [Scoring::Streaming, Scoring::H2o, Scoring::SnapKv, Scoring::Quest, Scoring::ArkVale, Scoring::Attention];

    /// Return its name in configuration files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scoring::Streaming => "streaming",
            Scoring::H2o => "h2o",
            Scoring::SnapKv => "snapkv",
            Scoring::Quest => "quest",
            Scoring::ArkVale => "arkvale",
            Scoring::Attention => "attention",
        }
    }

    /// Return the digest estimate that it needs.
    #[must_use]
    pub fn estimate(self) -> Estimate {
        match self {
            Scoring::Streaming | Scoring::H2o | Scoring::SnapKv => Estimate::None,
            Scoring::Quest => Estimate::Box,
            Scoring::ArkVale => Estimate::Ball,
            Scoring::Attention => Estimate::Sketch,
        }
    }
}

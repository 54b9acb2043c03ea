//! Prior work by name: what each ranks a page by.

use serde::{Deserialize, Serialize};

/// What a score entry tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Shares of attention that step `step` gave to the pages that it read.
    Mass,
    /// Shares that digests estimate for step `step`'s own query; told before its `Mass`, or not at all.
    Query,
    /// Shares that digests estimate for a guess of step `step`'s query, told before the plane's attention runs.
    Ahead,
}

/// Which digests' estimates `Query` and `Ahead` entries hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Estimate {
    /// None are used.
    None,
    /// A bound from channelwise minima and maxima.
    Box,
    /// The centre's product, raised by the radius.
    Ball,
    /// Sketches: groups of keys.
    Sketch,
}

/// How pages are ranked. Sinks, recency and the tail are kept by the planner whatever the ranking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scoring {
    /// Sinks and the most recent pages (StreamingLLM, arXiv 2309.17453).
    Streaming,
    /// Attention accumulated while the page was read (H2O, arXiv 2306.14048).
    H2o,
    /// Attention pooled over a window of queries (SnapKV, arXiv 2404.14469); the window moves with decode.
    SnapKv,
    /// The newest query's min/max digest scores (Quest, arXiv 2406.10774).
    Quest,
    /// The newest query's centre and radius scores (ArkVale, NeurIPS 2024).
    ArkVale,
    /// All signals, their weights fitted while running.
    #[default]
    Attention,
}

impl Scoring {
    /// All of them.
    pub const ALL: [Scoring; 6] =
        [Scoring::Streaming, Scoring::H2o, Scoring::SnapKv, Scoring::Quest, Scoring::ArkVale, Scoring::Attention];

    /// Its name in configuration files.
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

    /// What digests must be asked for it.
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

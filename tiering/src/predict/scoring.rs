//! Prior work by name: what each ranks a page by.

use serde::{Deserialize, Serialize};

/// What a score entry tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Shares of attention that step `step` gave to the pages that it read.
    Mass,
    /// Shares that digests estimate for step `step`'s own query.
    Query,
    /// Shares that digests estimate for a guess of step `step`'s query, told before the plane's attention runs.
    Ahead,
}

/// How pages are ranked. Sinks, recency and the tail are kept by the planner whatever the ranking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scoring {
    /// Sinks and the most recent pages (StreamingLLM, arXiv 2309.17453).
    Streaming,
    /// Attention accumulated since the page came (H2O, arXiv 2306.14048).
    H2o,
    /// Attention pooled over the last queries (SnapKV, arXiv 2404.14469).
    SnapKv,
    /// The newest query's digest scores, min/max digests in its paper (Quest, arXiv 2406.10774).
    Quest,
    /// The newest query's digest scores, centre and radius in its paper (ArkVale, NeurIPS 2024), smoothed by the page's last share.
    ArkVale,
    /// All signals, their weights fitted while running.
    #[default]
    Attention,
}

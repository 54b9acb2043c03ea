//! Results of a replay of requests, as text and JSON.

use super::super::trace::Requests;
use super::drive::{Outcome, Setup};
use serde_json::{Value, json};
use std::fmt::Write;

/// The figures of one policy at one capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    /// Found blocks (as part of a whole cached prefix) divided by requested blocks.
    pub(super) hit_ratio: f64,
    /// The same by the fastest tier that had them: tier 0, host memory, NVMe.
    pub(super) by_tier: [f64; 3],
    /// Hit rate of a cache of NVMe's size that knows the future.
    pub(super) belady: f64,
    /// Bytes written to NVMe.
    pub(super) bytes_written: u64,
    /// Blocks written to NVMe divided by blocks found only there.
    pub(super) writes_per_hit: f64,
    /// Mean microseconds that a request waited for its cached blocks.
    pub(super) load_us_per_request: f64,
    /// Blocks dropped unwritten because of the daily write limit.
    pub(super) over_budget: u64,
    /// Estimate of the ghost caches: hit rate with all blocks written, and the bytes a day for it.
    pub(super) advised: Option<(f64, u64)>,
    /// Blocks that fit on NVMe and in host memory.
    pub(super) blocks: (u32, u32),
}

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

/// Round to six decimal places.
fn rounded(value: f64) -> Value {
    ((value * 1e6).round() / 1e6).into()
}

impl Figures {
    pub(super) fn of(outcome: &Outcome, setup: Setup, belady: f64) -> Figures {
        let host = outcome.found.saturating_sub(outcome.tier0_hits + outcome.nvme_hits);
        Figures {
            hit_ratio: ratio(outcome.found, outcome.asked),
            by_tier: [outcome.tier0_hits, host, outcome.nvme_hits].map(|hits| ratio(hits, outcome.asked)),
            belady,
            bytes_written: outcome.written * u64::from(setup.block_bytes),
            writes_per_hit: ratio(outcome.written, outcome.nvme_hits),
            load_us_per_request: ratio(outcome.load_ns, outcome.requests) / 1000.0,
            over_budget: outcome.over_budget,
            advised: outcome.advised,
            blocks: (setup.nvme, setup.host),
        }
    }

    pub(super) fn json(&self) -> Value {
        let [tier0, host, nvme] = self.by_tier.map(rounded);
        json!({
            "hit_ratio": rounded(self.hit_ratio),
            "hit_ratio_by_tier": {"tier0": tier0, "host": host, "nvme": nvme},
            "belady": rounded(self.belady),
            "bytes_written": self.bytes_written,
            "writes_per_hit": rounded(self.writes_per_hit),
            "load_us_per_request": rounded(self.load_us_per_request),
            "over_budget_blocks": self.over_budget,
            "advised_hit_ratio": self.advised.map_or(Value::Null, |(hits, _)| rounded(hits)),
            "advised_bytes_per_day": self.advised.map(|(_, bytes)| bytes),
            "nvme_blocks": self.blocks.0,
            "host_blocks": self.blocks.1,
        })
    }
}

/// Return a table: one line for each policy at each capacity.
pub(super) fn table(trace: &Requests, rows: &[(&str, f64, Figures)]) -> String {
    let mut text = format!(
        "{} requests, {} blocks, {} distinct\n{:>8} {:<12}{:>8}{:>8}{:>8}{:>8}{:>8}{:>14}{:>12}{:>14}{:>12}{:>9}{:>14}\n",
        trace.len(),
        trace.uses(),
        trace.distinct(),
        "NVMe %",
        "policy",
        "hits",
        "tier 0",
        "host",
        "NVMe",
        "Belady",
        "GB written",
        "writes/hit",
        "load us/req",
        "over budget",
        "advised",
        "advised TB/day"
    );
    for (name, capacity, figures) in rows {
        let [tier0, host, nvme] = figures.by_tier;
        let advised = figures.advised.map_or("-".into(), |(hits, _)| format!("{hits:.3}"));
        let day = figures.advised.map_or("-".into(), |(_, bytes)| format!("{:.2}", bytes as f64 / 1e12));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{capacity:>8} {name:<12}{:>8.3}{tier0:>8.3}{host:>8.3}{nvme:>8.3}{:>8.3}{:>14.1}{:>12.2}{:>14.0}\
            {:>12}{advised:>9}{day:>14}",
            figures.hit_ratio,
            figures.belady,
            figures.bytes_written as f64 / 1e9,
            figures.writes_per_hit,
            figures.load_us_per_request,
            figures.over_budget,
        );
    }
    text.push_str(
        "hits: blocks found as part of a whole cached prefix, of all requested; Belady: the same for a cache of NVMe's size \
         that knows the future\nover budget: blocks dropped unwritten because of --bytes-per-day; advised: estimated hits with \
         all blocks written, and the bytes a day for it\n",
    );
    text
}

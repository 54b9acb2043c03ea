//! Results of a replay of attention, as text and JSON.

use super::super::ReplayError;
use super::baseline::Baselines;
use super::drive::Outcome;
use super::exact::Exact;
use serde_json::{Value, json};
use std::fmt::Write;

/// Shares of one plane's attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Plane {
    /// In tier 0 at the time of use.
    pub(super) mass_recall: f64,
    /// In the oracle's pages, in the best of the last step, in the best by the true query's digests: as many as fit in tier 0.
    pub(super) oracle: f64,
    pub(super) last_step: f64,
    pub(super) true_query: f64,
    /// Pages in tier 0 at the time of use.
    pub(super) pages: f64,
}

/// The figures of a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) planes: Vec<Plane>,
    coverage: f64,
    precision: f64,
    late: f64,
    prefetched_bytes: u64,
    wasted_bytes: u64,
    loaded_bytes: u64,
    nvme_read_bytes: u64,
    demanded_pages: u64,
    stall_us_per_token: f64,
    step_us: f64,
    digest_percent: f64,
}

/// Sizes from which figures are computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Bytes of a page on a link, and of a page in the trace.
    pub(super) page_bytes: u32,
    pub(super) own_bytes: u32,
    pub(super) digest_bytes: usize,
    pub(super) plane_ns: u64,
}

fn rounded(value: f64) -> Value {
    ((value * 1e6).round() / 1e6).into()
}

impl Figures {
    pub(super) fn of(outcome: &Outcome, baselines: &Baselines, sizes: Sizes) -> Figures {
        let stats = &outcome.stats;
        let planes = (0..stats.recall.len()).map(|plane| Plane {
            mass_recall: stats.recall[plane],
            oracle: baselines.oracle[plane],
            last_step: baselines.last_step[plane],
            true_query: baselines.true_query[plane],
            pages: stats.pages(plane),
        });
        let page_bytes = u64::from(sizes.page_bytes);
        Figures {
            coverage: stats.coverage(),
            precision: stats.precision(),
            late: stats.late(),
            prefetched_bytes: stats.prefetched * page_bytes,
            wasted_bytes: stats.wasted() * page_bytes,
            loaded_bytes: outcome.loaded_bytes,
            nvme_read_bytes: outcome.read_bytes,
            demanded_pages: stats.demanded,
            stall_us_per_token: outcome.stall_ns as f64 / outcome.steps.max(1) as f64 / 1000.0,
            step_us: stats.recall.len() as f64 * sizes.plane_ns as f64 / 1000.0,
            digest_percent: sizes.digest_bytes as f64 * 100.0 / f64::from(sizes.own_bytes),
            planes: planes.collect(),
        }
    }

    fn mean(&self, of: impl Fn(&Plane) -> f64) -> f64 {
        self.planes.iter().map(of).sum::<f64>() / self.planes.len().max(1) as f64
    }

    /// Return the part of the oracle's mass: the mean over planes, and the worst plane.
    fn of_oracle(&self) -> (f64, f64) {
        let share = |plane: &Plane| plane.mass_recall / plane.oracle.max(f64::MIN_POSITIVE);
        (self.mean(share), self.planes.iter().map(share).fold(f64::INFINITY, f64::min))
    }

    /// Return the relative reduction of missed mass (compared to the oracle) against the best pages of the last step, as the mean
    /// over planes.
    fn missed_less(&self) -> f64 {
        let missed = self.mean(|plane| 1.0 - plane.mass_recall / plane.oracle.max(f64::MIN_POSITIVE));
        let before = self.mean(|plane| 1.0 - plane.last_step / plane.oracle.max(f64::MIN_POSITIVE));
        if before > 0.0 { 1.0 - missed / before } else { 0.0 }
    }

    /// Return the same for each plane, then averaged: a plane that misses little, but more than the last step's pages, has full
    /// weight.
    fn missed_less_by_plane(&self) -> f64 {
        let moved = |plane: &&Plane| plane.oracle > plane.last_step;
        let less = |plane: &Plane| 1.0 - (plane.oracle - plane.mass_recall) / (plane.oracle - plane.last_step);
        let (count, sum) =
            self.planes.iter().filter(moved).fold((0, 0.0), |(n, sum), plane| (n + 1, sum + less(plane)));
        sum / f64::from(count.max(1))
    }

    /// Return the JSON object, including the results of the same sequence with `exact`.
    pub(super) fn json(&self, exact: &Result<Exact, ReplayError>) -> Value {
        let (of_oracle, worst) = self.of_oracle();
        let plane = |plane: &Plane| {
            json!({
                "mass_recall": rounded(plane.mass_recall),
                "mass_recall_oracle": rounded(plane.oracle),
                "mass_recall_last_step": rounded(plane.last_step),
                "mass_recall_true_query": rounded(plane.true_query),
                "pages": rounded(plane.pages),
            })
        };
        json!({
            "mass_recall": rounded(self.mean(|plane| plane.mass_recall)),
            "mass_recall_oracle": rounded(self.mean(|plane| plane.oracle)),
            "mass_recall_last_step": rounded(self.mean(|plane| plane.last_step)),
            "mass_recall_true_query": rounded(self.mean(|plane| plane.true_query)),
            "mass_of_oracle": rounded(of_oracle),
            "mass_of_oracle_worst": rounded(worst),
            "missed_less_than_last_step": rounded(self.missed_less()),
            "missed_less_by_plane": rounded(self.missed_less_by_plane()),
            "coverage": rounded(self.coverage),
            "precision": rounded(self.precision),
            "late": rounded(self.late),
            "prefetched_bytes": self.prefetched_bytes,
            "wasted_bytes": self.wasted_bytes,
            "loaded_bytes": self.loaded_bytes,
            "nvme_read_bytes": self.nvme_read_bytes,
            "demanded_pages": self.demanded_pages,
            "stall_us_per_token": rounded(self.stall_us_per_token),
            "step_us": rounded(self.step_us),
            "digest_percent": rounded(self.digest_percent),
            "exact": exact_json(exact),
            "planes": self.planes.iter().map(plane).collect::<Vec<_>>(),
        })
    }

    /// Format a table: planes and summary, and bytes moved with `exact`. Writing to a string cannot fail.
    pub(super) fn table(&self, exact: &Result<Exact, ReplayError>) -> String {
        let mut text = String::from("approx          ");
        for word in ["tier 0", "oracle", "last step", "true query", "of oracle", "pages"] {
            let _ = write!(text, "{word:>12}");
        }
        text.push('\n');
        let mut line = |what: String, plane: Plane| {
            let share = plane.mass_recall / plane.oracle.max(f64::MIN_POSITIVE);
            let _ = write!(text, "{what:<16}");
            for value in [plane.mass_recall, plane.oracle, plane.last_step, plane.true_query, share] {
                let _ = write!(text, "{value:>12.4}");
            }
            let _ = writeln!(text, "{:>12.1}", plane.pages);
        };
        for (number, plane) in self.planes.iter().enumerate() {
            line(format!("  plane {number}"), *plane);
        }
        let mean = Plane {
            mass_recall: self.mean(|plane| plane.mass_recall),
            oracle: self.mean(|plane| plane.oracle),
            last_step: self.mean(|plane| plane.last_step),
            true_query: self.mean(|plane| plane.true_query),
            pages: self.mean(|plane| plane.pages),
        };
        line("  mean".into(), mean);
        let (of_oracle, worst) = self.of_oracle();
        let _ = writeln!(
            text,
            "  of the oracle's mass: mean {of_oracle:.4}, worst plane {worst:.4}; missed {} than with the last step's pages, \
            mean over planes {}\n  coverage {:.3}, precision {:.3}, late {:.4}; prefetched {} bytes, wasted {}; from NVMe {}\n  \
            stall {:.3} us per token of {:.1} us; {} pages waited for; digests take {:.2} % of a page",
            less(self.missed_less()),
            less(self.missed_less_by_plane()),
            self.coverage,
            self.precision,
            self.late,
            self.prefetched_bytes,
            self.wasted_bytes,
            self.nvme_read_bytes,
            self.stall_us_per_token,
            self.step_us,
            self.demanded_pages,
            self.digest_percent,
        );
        let _ = match exact {
            Ok(exact) => writeln!(
                text,
                "exact           {} bytes to tier 0, {:.3} of the minimum of a cyclic scan ({}); from NVMe {}; stall {:.3} us per \
                token",
                exact.bytes,
                exact.ratio(),
                exact.optimum_bytes,
                exact.nvme_read_bytes,
                exact.stall_us_per_token,
            ),
            Err(error) => writeln!(text, "exact           failed: {error}"),
        };
        text
    }
}

fn exact_json(exact: &Result<Exact, ReplayError>) -> Value {
    match exact {
        Ok(exact) => json!({
            "bytes": exact.bytes,
            "optimum_bytes": exact.optimum_bytes,
            "ratio": rounded(exact.ratio()),
            "nvme_read_bytes": exact.nvme_read_bytes,
            "stall_us_per_token": rounded(exact.stall_us_per_token),
        }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}

/// Format a relative reduction; a negative one as an increase.
fn less(part: f64) -> String {
    let percent = (part.abs() * 1000.0).round() / 10.0;
    format!("{percent:.1} % {}", if part < 0.0 { "more" } else { "less" })
}

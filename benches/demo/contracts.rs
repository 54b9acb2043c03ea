//! Comparison of the contracts other than exact.

use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;

use super::engine::{Drift, Measured, Reading, space_of};
use super::error::DemoError;
use super::report::{mib, thousands};

/// A run with a contract other than exact.
#[derive(Clone, Debug)]
pub struct Inexact {
    measured: Measured,
    reading: Reading,
    /// From the daemon's status.
    prefetch: Prefetch,
    /// The same run without prefetch, if there was one.
    without: Option<Measured>,
}

/// Pages that the daemon prefetched based on attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Prefetch {
    /// Pages loaded because of predictions.
    pub loads: u64,
    /// Pages read after they had been loaded.
    pub used: u64,
    /// Pages needed before they had been loaded.
    pub late: u64,
    /// Pages evicted without having been read.
    pub wasted: u64,
}

/// JSON result of a contract. Shares are of the attention of a plane in a step, averaged over decode steps and planes.
#[derive(Debug, Serialize)]
pub struct Object {
    contract: String,
    tokens_per_s: f64,
    /// The same without prefetch; null if that was not measured.
    tokens_per_s_without_prefetch: Option<f64>,
    stall_us_per_token: f64,
    pages_needed: u64,
    /// Needed pages that were not read.
    pages_omitted: u64,
    /// Skipped pages that were selected but not in tier 0 in time.
    pages_waived: u64,
    /// The agent's estimate of the attention share of skipped pages.
    omitted_share_told: f64,
    /// The measured share of skipped pages, averaged over query heads.
    omitted_share_true: f64,
    /// For the worst query head of each plane and step: the agent's figure, and the measured share.
    omitted_share_told_worst_head: f64,
    omitted_share_true_worst_head: f64,
    /// Maximum share lost by one query head in one plane and step.
    omitted_share_worst: f64,
    /// Share of planes and steps in which a query head lost more than half.
    heads_mostly_omitted: f64,
    /// Number of tokens with the same most likely successor as in the reference.
    same_choice: u64,
    tokens: u64,
    /// Nats per token.
    kl_divergence: f64,
    /// Increase of the loss on the reference's tokens, in nats per token.
    loss_added: f64,
    bytes_host_to_tier0: u64,
    prefetch: Prefetch,
}

impl Inexact {
    /// Create from the engine's measurements and the daemon's status at the end of the run.
    ///
    /// # Errors
    /// The measurements lack a contract, or the status lacks the space.
    pub fn new(measured: Measured, status: &Value) -> Result<Inexact, DemoError> {
        let reading = measured.reading.clone().ok_or(DemoError::Incomplete)?;
        let prefetch = Prefetch::of(status, &space_of(&reading.contract, reading.prefetch))?;
        Ok(Inexact { measured, reading, prefetch, without: None })
    }

    /// Create from the runs of the engine and the daemon's status at the end of each: a run without prefetch precedes the one with
    /// it.
    ///
    /// # Errors
    /// As of [`Inexact::new`]; or a run without prefetch has no counterpart.
    pub fn paired(runs: impl Iterator<Item = (Measured, Value)>) -> Result<Vec<Inexact>, DemoError> {
        let (mut pairs, mut without) = (Vec::new(), None);
        for (measured, status) in runs {
            let prefetch = measured.reading.as_ref().is_some_and(|reading| reading.prefetch);
            if prefetch {
                pairs.push(Inexact { without: without.take(), ..Inexact::new(measured, &status)? });
            } else {
                without = Some(measured);
            }
        }
        if without.is_some() { Err(DemoError::Incomplete) } else { Ok(pairs) }
    }

    /// Return the contract.
    #[must_use]
    pub fn contract(&self) -> &str {
        &self.reading.contract
    }

    /// Return the decoded tokens per second without prefetch, if measured, and with it.
    #[must_use]
    pub fn tokens_per_s(&self) -> (Option<f64>, f64) {
        (self.without.as_ref().map(|run| 1.0 / run.step_s), 1.0 / self.measured.step_s)
    }

    /// Return the prefetched pages.
    #[must_use]
    pub fn prefetch(&self) -> Prefetch {
        self.prefetch
    }

    /// Return the share of tokens with the same most likely successor as in the reference.
    #[must_use]
    pub fn same_choice(&self) -> f64 {
        self.reading.drift.same_choice as f64 / self.reading.drift.tokens.max(1) as f64
    }

    fn mean(&self, sum: f64) -> f64 {
        sum / self.reading.omitted.planes.max(1) as f64
    }

    fn stall_us(&self) -> f64 {
        self.measured.decode.stall_ns as f64 / 1e3 / self.reading.drift.tokens.max(1) as f64
    }

    fn kl(&self) -> f64 {
        self.reading.drift.kl / self.reading.drift.tokens.max(1) as f64
    }

    fn loss(&self) -> f64 {
        self.reading.drift.loss / self.reading.drift.tokens.max(1) as f64
    }

    /// Return the JSON result.
    #[must_use]
    pub fn object(&self) -> Object {
        let Reading { contract, omitted, drift, .. } = &self.reading;
        Object {
            contract: contract.clone(),
            tokens_per_s: self.tokens_per_s().1,
            tokens_per_s_without_prefetch: self.tokens_per_s().0,
            stall_us_per_token: self.stall_us(),
            pages_needed: omitted.needed,
            pages_omitted: omitted.omitted,
            pages_waived: omitted.waived,
            omitted_share_told: self.mean(omitted.said),
            omitted_share_true: self.mean(omitted.truth),
            omitted_share_told_worst_head: self.mean(omitted.worst_said),
            omitted_share_true_worst_head: self.mean(omitted.worst_truth),
            omitted_share_worst: omitted.worst,
            heads_mostly_omitted: self.mean(omitted.mostly_omitted as f64),
            same_choice: drift.same_choice,
            tokens: drift.tokens,
            kl_divergence: self.kl(),
            loss_added: self.loss(),
            bytes_host_to_tier0: self.measured.decode.bytes_host_to_tier0,
            prefetch: self.prefetch,
        }
    }
}

impl Prefetch {
    /// Read the counters from the daemon's status.
    fn of(status: &Value, space: &str) -> Result<Prefetch, DemoError> {
        let spaces = status["spaces"].as_array().into_iter().flatten();
        let core = spaces.filter(|candidate| candidate["name"] == space).map(|space| &space["core"]).next_back();
        let core = core.ok_or_else(|| DemoError::Status(format!("space {space}")))?;
        let number = |name: &str| {
            let path = format!("attention_{name}");
            core[&path].as_u64().ok_or_else(|| DemoError::Status(format!("{path} of space {space}")))
        };
        let [loads, used, late, wasted] = ["loads", "used", "late", "wasted"].map(number);
        Ok(Prefetch { loads: loads?, used: used?, late: late?, wasted: wasted? })
    }

    /// Return the share of the judged pages that were used; `None` if none was judged.
    #[must_use]
    pub fn used_share(&self) -> Option<f64> {
        let judged = self.used + self.wasted;
        (judged > 0).then(|| self.used as f64 / judged as f64)
    }
}

/// Return the table, empty if only the contract exact was requested. The run with `exact` decoded `tokens` tokens.
#[must_use]
pub fn table(exact: &Measured, tokens: usize, inexact: &[Inexact]) -> String {
    let mut text = String::new();
    if inexact.is_empty() {
        return text;
    }
    let mut row = |name: &str, first: String, figure: &dyn Fn(&Inexact) -> String| {
        let mut line = format!("{name:<31} {first:>13}");
        for run in inexact {
            // Writing to a string cannot fail.
            let _ = write!(line, " {:>15}", figure(run));
        }
        let _ = writeln!(text, "{}", line.trim_end());
    };
    let percent = |share: f64| format!("{:.3} %", share * 100.0);
    let nothing = || "0.000 %".to_owned();
    row("contract, small tier 0", "exact".into(), &|run| run.reading.contract.clone());
    row("decode, tokens/s (quartile)", format!("{:.1}", 1.0 / exact.step_s), &|run| {
        format!("{:.1}", 1.0 / run.measured.step_s)
    });
    let stall = exact.decode.stall_ns as f64 / 1e3 / tokens.max(1) as f64;
    row("  without prefetch", String::new(), &|run| {
        run.tokens_per_s().0.map_or_else(String::new, |rate| format!("{rate:.1}"))
    });
    row("stall per decoded token, us", format!("{stall:.1}"), &|run| format!("{:.1}", run.stall_us()));
    row("moved host -> tier 0, decode", mib(exact.decode.bytes_host_to_tier0), &|run| {
        mib(run.measured.decode.bytes_host_to_tier0)
    });
    let of_needed = |run: &Inexact, pages: u64| percent(pages as f64 / run.reading.omitted.needed.max(1) as f64);
    row("pages skipped", nothing(), &|run| of_needed(run, run.reading.omitted.omitted));
    row("  selected but not loaded", nothing(), &|run| of_needed(run, run.reading.omitted.waived));
    row("attention skipped: measured", nothing(), &|run| percent(run.mean(run.reading.omitted.truth)));
    row("  estimated", nothing(), &|run| percent(run.mean(run.reading.omitted.said)));
    row("worst head: measured", nothing(), &|run| percent(run.mean(run.reading.omitted.worst_truth)));
    row("  estimated", nothing(), &|run| percent(run.mean(run.reading.omitted.worst_said)));
    row("  maximum over steps", nothing(), &|run| percent(run.reading.omitted.worst));
    row("  over 50 %, share of steps", nothing(), &|run| percent(run.mean(run.reading.omitted.mostly_omitted as f64)));
    row("top-1 agreement", percent(1.0), &|run| {
        let Drift { tokens, same_choice, .. } = run.reading.drift;
        percent(same_choice as f64 / tokens.max(1) as f64)
    });
    row("KL divergence, nats/token", "0.00000".into(), &|run| format!("{:.5}", run.kl()));
    row("loss increase, nats/token", "0.00000".into(), &|run| format!("{:+.5}", run.loss()));
    row("prefetched pages", String::new(), &|run| thousands(run.prefetch.loads));
    row("  used", String::new(), &|run| thousands(run.prefetch.used));
    row("  late", String::new(), &|run| thousands(run.prefetch.late));
    row("  wasted", String::new(), &|run| thousands(run.prefetch.wasted));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_came_early_is_the_space_s_own() {
        let core =
            |used| json!({"attention_loads": 9, "attention_used": used, "attention_late": 2, "attention_wasted": 3});
        let status = json!({"spaces": [{"name": "a", "core": core(7)}, {"name": "b", "core": core(1)}]});
        assert_eq!(Prefetch::of(&status, "b").unwrap(), Prefetch { loads: 9, used: 1, late: 2, wasted: 3 });
        assert!(Prefetch::of(&status, "c").unwrap_err().to_string().contains("space c"));
        let lacking = json!({"spaces": [{"name": "a", "core": {}}]});
        assert!(Prefetch::of(&lacking, "a").unwrap_err().to_string().contains("attention_loads"));
    }
}

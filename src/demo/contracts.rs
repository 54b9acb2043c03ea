//! What decoding by other contracts than exact came to, side by side.

use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;

use super::engine::{Drift, Measured, Reading, space_of};
use super::error::DemoError;
use super::report::{mib, thousands};

/// One run by another contract than exact.
#[derive(Clone, Debug)]
pub struct Inexact {
    measured: Measured,
    reading: Reading,
    /// By the daemon's own status.
    prefetch: Prefetch,
}

/// Pages that the daemon moved up by what attention told it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Prefetch {
    /// Read after they had come.
    pub used: u64,
    /// Wanted while they were still on their way.
    pub late: u64,
    /// Gone again without having been read.
    pub wasted: u64,
}

/// What `--json` tells of a contract. Shares are of the attention of a plane in a step, means over decode steps and planes.
#[derive(Debug, Serialize)]
pub struct Object {
    contract: String,
    tokens_per_s: f64,
    stall_us_per_token: f64,
    pages_needed: u64,
    /// Of them, those that were not read.
    pages_omitted: u64,
    /// Of those, the ones that were picked and were not in tier 0, or not in time.
    pages_waived: u64,
    /// What the agent said that the omitted pages hold: by `approx` an estimate, by `bounded` what was proved, of the query head
    /// that loses most.
    omitted_share_told: f64,
    /// What they hold, mean over query heads.
    omitted_share_true: f64,
    /// Of the query head that loses most in a plane of a step: as told, and in truth.
    omitted_share_told_worst_head: f64,
    omitted_share_true_worst_head: f64,
    /// What one query head lost at most in one plane of one step.
    omitted_share_worst: f64,
    /// Share of planes of steps in which a query head lost over half.
    heads_starved: f64,
    /// Tokens whose likeliest successor is the reference's, and how many there were.
    same_choice: u64,
    tokens: u64,
    /// Nats a token.
    kl_divergence: f64,
    /// What the loss on the reference's tokens grows by, nats a token.
    loss_added: f64,
    bytes_host_to_tier0: u64,
    prefetch: Prefetch,
}

impl Inexact {
    /// From what the engine measured and the daemon's status at the run's end.
    ///
    /// # Errors
    /// The engine left out what it read, or the status has no such space.
    pub fn new(measured: Measured, status: &Value) -> Result<Inexact, DemoError> {
        let reading = measured.reading.clone().ok_or(DemoError::Incomplete)?;
        let prefetch = Prefetch::of(status, &space_of(&reading.contract))?;
        Ok(Inexact { measured, reading, prefetch })
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

    /// For `--json`.
    #[must_use]
    pub fn object(&self) -> Object {
        let Reading { contract, omitted, drift } = &self.reading;
        Object {
            contract: contract.clone(),
            tokens_per_s: 1.0 / self.measured.step_s,
            stall_us_per_token: self.stall_us(),
            pages_needed: omitted.needed,
            pages_omitted: omitted.omitted,
            pages_waived: omitted.waived,
            omitted_share_told: self.mean(omitted.said),
            omitted_share_true: self.mean(omitted.truth),
            omitted_share_told_worst_head: self.mean(omitted.worst_said),
            omitted_share_true_worst_head: self.mean(omitted.worst_truth),
            omitted_share_worst: omitted.worst,
            heads_starved: self.mean(omitted.starved as f64),
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
    /// From the daemon's status.
    fn of(status: &Value, space: &str) -> Result<Prefetch, DemoError> {
        let spaces = status["spaces"].as_array().into_iter().flatten();
        let core = spaces.filter(|candidate| candidate["name"] == space).map(|space| &space["core"]).next_back();
        let core = core.ok_or_else(|| DemoError::Status(format!("space {space}")))?;
        let number = |name: &str| {
            let path = format!("attention_{name}");
            core[&path].as_u64().ok_or_else(|| DemoError::Status(format!("{path} of space {space}")))
        };
        Ok(Prefetch { used: number("used")?, late: number("late")?, wasted: number("wasted")? })
    }
}

/// The table for people; nothing if only the contract exact was asked for. `exact` decoded `tokens` tokens.
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
    row("stall per decoded token, us", format!("{stall:.1}"), &|run| format!("{:.1}", run.stall_us()));
    row("moved host -> tier 0, decode", mib(exact.decode.bytes_host_to_tier0), &|run| {
        mib(run.measured.decode.bytes_host_to_tier0)
    });
    let of_needed = |run: &Inexact, pages: u64| percent(pages as f64 / run.reading.omitted.needed.max(1) as f64);
    row("pages not read", nothing(), &|run| of_needed(run, run.reading.omitted.omitted));
    row("  picked, and not there", nothing(), &|run| of_needed(run, run.reading.omitted.waived));
    row("attention omitted, in truth", nothing(), &|run| percent(run.mean(run.reading.omitted.truth)));
    row("  as told", nothing(), &|run| percent(run.mean(run.reading.omitted.said)));
    row("by the head that loses most", nothing(), &|run| percent(run.mean(run.reading.omitted.worst_truth)));
    row("  as told", nothing(), &|run| percent(run.mean(run.reading.omitted.worst_said)));
    row("  at most, in any step", nothing(), &|run| percent(run.reading.omitted.worst));
    row("  over half, of all steps", nothing(), &|run| percent(run.mean(run.reading.omitted.starved as f64)));
    row("same likeliest token", percent(1.0), &|run| {
        let Drift { tokens, same_choice, .. } = run.reading.drift;
        percent(same_choice as f64 / tokens.max(1) as f64)
    });
    row("KL divergence, nats a token", "0.00000".into(), &|run| format!("{:.5}", run.kl()));
    row("loss on the same text, nats", "0.00000".into(), &|run| format!("{:+.5}", run.loss()));
    row("prefetched, used", String::new(), &|run| thousands(run.prefetch.used));
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
        let core = |used| json!({"attention_used": used, "attention_late": 2, "attention_wasted": 3});
        let status = json!({"spaces": [{"name": "a", "core": core(7)}, {"name": "b", "core": core(1)}]});
        assert_eq!(Prefetch::of(&status, "b").unwrap(), Prefetch { used: 1, late: 2, wasted: 3 });
        assert!(Prefetch::of(&status, "c").unwrap_err().to_string().contains("space c"));
        let lacking = json!({"spaces": [{"name": "a", "core": {}}]});
        assert!(Prefetch::of(&lacking, "a").unwrap_err().to_string().contains("attention_used"));
    }
}

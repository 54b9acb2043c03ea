//! Comparison of the NVMe admission rules: hits, and bytes written for them (`docs/decisions/disks.md`, 14).

use super::super::ReplayError;
use super::super::trace::Requests;
use super::drive::{self, Outcome, Setup};
use super::figures::Figures;
use super::{Args, setup};
use kvtide_daemon::output;
use kvtide_tiering::api::Admission;
use serde_json::{Map, Value};
use std::fmt::Write;

/// Microseconds of a day.
const DAY_US: u128 = 24 * 3600 * 1_000_000;

/// Replay, and return the output: a table, or one object by rule and capacity.
pub(super) fn run(args: &Args, trace: &Requests) -> Result<String, ReplayError> {
    let mut rows: Vec<(String, Outcome, Figures)> = Vec::new();
    for &capacity in &args.capacity_percent {
        let mut run = |name: String, admission, bytes_per_day| -> Result<Outcome, ReplayError> {
            let setup = Setup { admission, bytes_per_day, ..setup(args, trace, capacity) };
            let outcome = drive::replay(trace, setup, format!("{name}, NVMe of {capacity} %"))?;
            rows.push((format!("{name}_{capacity}"), outcome, Figures::of(&outcome, setup, 0.0)));
            Ok(outcome)
        };
        let all = run("all".into(), Admission::All, 0)?;
        run("second_touch".into(), Admission::SecondTouch, 0)?;
        for &percent in &args.budget_percent {
            let block_bytes = u64::from(setup(args, trace, capacity).block_bytes);
            let bytes = u128::from(all.written) * u128::from(block_bytes) * (percent * 1000.0) as u128 / 100_000;
            let span_us = u128::from(trace.span_ms().max(1)) * 1000;
            let bytes_per_day = u64::try_from(bytes * DAY_US / span_us).unwrap_or(u64::MAX).max(1);
            run(format!("all_within_{percent}"), Admission::All, bytes_per_day)?;
            run(format!("budget_{percent}"), Admission::Budget, bytes_per_day)?;
        }
    }
    Ok(if args.json { json(&rows) } else { table(&rows) })
}

fn written(outcome: &Outcome) -> f64 {
    outcome.written as f64 / outcome.asked.max(1) as f64
}

fn json(rows: &[(String, Outcome, Figures)]) -> String {
    let object = |(name, outcome, figures): &(String, Outcome, Figures)| -> (String, Value) {
        let mut own = figures.json();
        if let Some(own) = own.as_object_mut() {
            own.remove("belady");
            own.insert("written_per_block".into(), written(outcome).into());
        }
        (name.clone(), own)
    };
    output::json_line(&rows.iter().map(object).collect::<Map<_, _>>())
}

fn table(rows: &[(String, Outcome, Figures)]) -> String {
    let mut text = format!("{:<24}{:>8}{:>20}{:>12}\n", "rule_NVMe %", "hits", "written per block", "writes/hit");
    for (name, outcome, figures) in rows {
        let (hits, per_hit) = (figures.hit_ratio, figures.writes_per_hit);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<24}{hits:>8.3}{:>20.3}{per_hit:>12.2}", written(outcome));
    }
    text.push_str("all_within_N and budget_N: daily write limit of N % of the bytes that `all` writes\n");
    text
}

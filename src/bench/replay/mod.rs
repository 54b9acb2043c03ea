//! `kvtide bench replay`: which rule of admission suits a service, by its own trace. The shipped core decides; devices take no time,
//! so what is told are shares of hits and of writes, not speeds.

mod drive;
mod trace;

use super::report::Report;
use super::{BenchError, Output, progress};
use drive::{BLOCK_BYTES, Outcome, Setup};
use kvtide_tiering::api::Admission;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Microseconds of a day.
const DAY_US: u128 = 24 * 3600 * 1_000_000;

/// What `kvtide bench replay` takes.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// A trace: one JSON object a line with `timestamp` (milliseconds) and `hash_ids` (the ids of the request's prefix blocks)
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Blocks that NVMe holds, in percent of the trace's distinct blocks
    #[arg(long, value_delimiter = ',', default_values_t = [5, 10, 20], value_parser = clap::value_parser!(u32).range(1..=100))]
    capacity: Vec<u32>,
    /// Blocks that host memory holds, in percent of the trace's distinct blocks
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    host: u32,
    /// Bytes that `budget` may write, in percent of those that `all` writes
    #[arg(long, value_delimiter = ',', default_values_t = [25, 50], value_parser = clap::value_parser!(u32).range(1..=100))]
    budget: Vec<u32>,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Measures.
pub(super) fn measure(args: &Args) -> Result<Report, BenchError> {
    let trace = trace::read(&args.trace)?;
    let distinct = trace.iter().flat_map(|r| &r.hash_ids).collect::<BTreeSet<_>>().len() as u64;
    let span_us = trace.last().map_or(0, |r| r.timestamp).max(1) * 1000;
    let longest = trace.iter().map(|r| r.hash_ids.len()).max().unwrap_or(0) as u32;
    let share = |percent: u32| u32::try_from(distinct * u64::from(percent) / 100).unwrap_or(u32::MAX);
    // One request must be able to run at all.
    let host = share(args.host).max(longest + 64);
    let mut report = Report::default();
    report.count("requests", "requests", trace.len() as u64, "", None);
    report.count("blocks", "distinct blocks", distinct, "", None);
    for &capacity in &args.capacity {
        let nvme = share(capacity).max(64);
        let mut run = |name: String, admission, bytes_per_day| -> Result<Outcome, BenchError> {
            progress(&format!("NVMe of {capacity} %: {name}"));
            let outcome = drive::replay(&trace, Setup { host, nvme, longest, admission, bytes_per_day })?;
            tell(&mut report, &format!("{name}_{capacity}"), &format!("NVMe {capacity} %, {name}"), outcome);
            Ok(outcome)
        };
        let all = run("all".into(), Admission::All, 0)?;
        run("second_touch".into(), Admission::SecondTouch, 0)?;
        for &percent in &args.budget {
            let bytes = u128::from(all.written) * u128::from(BLOCK_BYTES) * u128::from(percent) / 100;
            let bytes_per_day = u64::try_from(bytes * DAY_US / u128::from(span_us)).unwrap_or(u64::MAX).max(1);
            run(format!("all_within_{percent}"), Admission::All, bytes_per_day)?;
            run(format!("budget_{percent}"), Admission::Budget, bytes_per_day)?;
        }
    }
    report.note(format!(
        "hits: blocks found behind a whole prefix, of all asked for; host memory holds {host} blocks; all_within_N and budget_N: as \
         many bytes a day as N % of what `all` writes"
    ));
    Ok(report)
}

fn tell(report: &mut Report, key: &str, what: &str, outcome: Outcome) {
    let ratio = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
    let mut fine = |figure: &str, of: &str, value: f64| {
        report.fine(format!("{key}.{figure}"), format!("{what}: {of}"), (value, 3), "", None);
    };
    fine("hit_ratio", "hits", ratio(outcome.found, outcome.asked));
    fine("written", "written a block asked for", ratio(outcome.written, outcome.asked));
    fine("writes_per_hit", "written a hit on NVMe", ratio(outcome.written, outcome.nvme_hits));
}

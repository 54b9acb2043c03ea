//! `kvtide replay requests`: hit rate of a service's prefixes by eviction policy and capacity, compared with the optimum.

mod admission;
mod belady;
mod drive;
mod figures;
#[cfg(test)]
mod kinds;
#[cfg(test)]
mod tests;

use super::chart::Line;
use super::machine::Bandwidths;
use super::trace::Requests;
use super::{ReplayError, chart, gbps, open, percent};
use drive::Setup;
use figures::Figures;
use kvtide_daemon::config::ByteSize;
use kvtide_daemon::output;
use kvtide_tiering::api::{Admission, Eviction};
use serde_json::{Map, Value};
use std::io::BufReader;
use std::path::PathBuf;

/// Tokens of a block.
const BLOCK_TOKENS: u32 = super::trace::requests::BLOCK_TOKENS;
/// Minimum blocks in host memory in addition to the longest request, for writes to NVMe in progress.
const HOST_MIN: u32 = 64;
/// Minimum capacity in blocks.
const CAPACITY_MIN: u32 = 64;
/// Flags of `kvtide replay requests`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Trace file: one JSON object per line with `timestamp` (milliseconds), `input_length`, `output_length` (tokens) and
    /// `hash_ids` (the request's prefix blocks of 512 tokens)
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Eviction policy
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = Eviction::ALL.map(Eviction::name))]
    policy: String,
    /// Run every eviction policy
    #[arg(long, conflicts_with = "policy")]
    all: bool,
    /// Capacity of the lowest tier (usually NVMe) in percent of the trace's distinct blocks; with several values, the JSON has an
    /// object for each within each policy
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [10.0], value_parser = percent)]
    capacity_percent: Vec<f64>,
    /// Host memory in percent of the capacity, at least the size of one request; 100: everything in host memory, no NVMe
    #[arg(long, value_name = "PERCENT", default_value_t = 25.0, value_parser = percent)]
    host_percent: f64,
    /// Bandwidth between tier 0 and host memory, each direction, in GB/s
    #[arg(long, value_name = "GBPS", default_value_t = 25.0, value_parser = gbps)]
    host_gbps: f64,
    /// Bandwidth between host memory and NVMe, in GB/s
    #[arg(long, value_name = "GBPS", default_value_t = 6.0, value_parser = gbps)]
    nvme_gbps: f64,
    /// Bytes of KV per token, all layers; the default is of an 8B model with grouped queries in fp8
    #[arg(long, value_name = "BYTES", default_value_t = 65536, value_parser = clap::value_parser!(u32).range(1..=(1 << 21)))]
    token_bytes: u32,
    /// NVMe admission rule, as in `tiers.nvme.admission`
    #[arg(long, value_name = "RULE", default_value = "all", value_parser = Admission::ALL.map(Admission::name))]
    admission: String,
    /// Limit of bytes written to NVMe a day, as the sum of `bytes_per_day` over all disks (default: no limit)
    #[arg(long, value_name = "SIZE", conflicts_with = "admissions")]
    bytes_per_day: Option<ByteSize>,
    /// Compare the NVMe admission rules under one eviction policy
    #[arg(long, conflicts_with_all = ["all", "admission"])]
    admissions: bool,
    /// With --admissions: write limits in percent of the bytes that `all` writes
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [25.0, 50.0], value_parser = percent)]
    budget_percent: Vec<f64>,
    /// Print one JSON object only
    #[arg(long)]
    json: bool,
    /// Draw the hit rates as SVG
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
}

/// Replay, and return the output.
pub(super) fn run(args: &Args) -> Result<String, ReplayError> {
    let trace =
        Requests::read(BufReader::new(open(&args.trace)?)).map_err(|broken| ReplayError::trace(&args.trace, broken))?;
    if args.admissions {
        return admission::run(args, &trace);
    }
    let mut rows: Vec<(&str, f64, Figures)> = Vec::new();
    let chosen = Eviction::ALL.into_iter().filter(|policy| args.all || policy.name() == args.policy);
    for (capacity, eviction) in args.capacity_percent.iter().flat_map(|c| chosen.clone().map(move |p| (*c, p))) {
        let (name, setup) = (eviction.name(), Setup { eviction, ..setup(args, &trace, capacity) });
        let outcome = drive::replay(&trace, setup, format!("{name}, NVMe of {capacity} %"))?;
        let ceiling = match rows.iter().find(|(_, c, _)| *c == capacity) {
            Some((_, _, figures)) => figures.belady,
            None => belady::belady(&trace, u64::from(capacity_blocks(&trace, capacity))) as f64 / trace.uses() as f64,
        };
        rows.push((name, capacity, Figures::of(&outcome, setup, ceiling)));
    }
    if let Some(path) = &args.chart {
        let tier = if args.host_percent < 100.0 { "NVMe" } else { "host memory" };
        chart::hits(path, &lines(&rows), tier).map_err(|why| ReplayError::Chart { path: path.clone(), why })?;
    }
    Ok(if args.json { json(args, &rows) } else { figures::table(&trace, &rows) })
}

fn share(of: u32, percent: f64) -> u32 {
    (f64::from(of) * percent / 100.0).round() as u32
}

fn capacity_blocks(trace: &Requests, percent: f64) -> u32 {
    share(trace.distinct(), percent).max(CAPACITY_MIN)
}

/// Return the settings for a capacity.
fn setup(args: &Args, trace: &Requests, capacity_percent: f64) -> Setup {
    let capacity = capacity_blocks(trace, capacity_percent);
    // A single request must fit.
    let host = share(capacity, args.host_percent).max(trace.longest() + HOST_MIN);
    let nvme = if args.host_percent < 100.0 { capacity } else { 0 };
    Setup {
        host,
        nvme,
        block_bytes: args.token_bytes * BLOCK_TOKENS,
        bandwidths: Bandwidths { host: args.host_gbps, nvme: args.nvme_gbps },
        admission: Admission::from_name(&args.admission).unwrap_or_default(),
        bytes_per_day: args.bytes_per_day.map_or(0, |size| size.0),
        eviction: Eviction::from_name(&args.policy).unwrap_or_default(),
    }
}

/// Return one object; with --all by policy, and with several capacities then by capacity.
fn json(args: &Args, rows: &[(&str, f64, Figures)]) -> String {
    let of = |name: &str| -> Value {
        let mut own = rows.iter().filter(|(row, ..)| *row == name);
        match args.capacity_percent.len() {
            1 => own.next().map_or(Value::Null, |(.., figures)| figures.json()),
            _ => own.map(|(_, capacity, figures)| (capacity.to_string(), figures.json())).collect::<Map<_, _>>().into(),
        }
    };
    let whole: Value = match args.all {
        true => {
            Eviction::ALL.iter().map(|policy| (policy.to_string(), of(policy.name()))).collect::<Map<_, _>>().into()
        }
        false => of(&args.policy),
    };
    output::json_line(&whole)
}

/// Return the hit rate by capacity: one line for each policy, and one for the upper bound.
fn lines(rows: &[(&str, f64, Figures)]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut add = |name: &str, capacity: f64, ratio: f64, bound| match lines.iter_mut().find(|line| line.name == name) {
        Some(line) if line.points.iter().any(|(c, _)| *c == capacity) => {}
        Some(line) => line.points.push((capacity, ratio)),
        None => lines.push(Line { name: name.into(), points: vec![(capacity, ratio)], bound }),
    };
    for (name, capacity, figures) in rows {
        add("Belady", *capacity, figures.belady, true);
        add(name, *capacity, figures.hit_ratio, false);
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

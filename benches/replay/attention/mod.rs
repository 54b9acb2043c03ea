//! `kvtide replay attention`: share of a decoder's attention in tier 0 at the time of use, compared with baselines.

mod baseline;
mod drive;
mod estimates;
mod exact;
mod figures;
mod scores;
mod sequence;
mod stats;

use super::chart::Line;
use super::machine::Bandwidths;
use super::trace::{Attention, attention::BYTES_MAX};
use super::{ReplayError, Told, chart, gbps, open, percent};
use baseline::{Baselines, Oracle, room};
use drive::{Known, NEEDED};
use estimates::Estimates;
use exact::Exact;
use figures::{Figures, Sizes};
use kvtide_daemon::output;
use sequence::Setup;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of keys and values per channel, in bf16.
const KV_BYTES: usize = 2 * 2;
/// Bytes of KV per token and layer: an 8B model with 8 KV heads of 128 channels in bf16.
const TOKEN_BYTES: usize = 4096;

/// Flags of `kvtide replay attention`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// A trace of attention, as safetensors (docs/design/prefetch.md)
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Pages that fit in tier 0, including the tails, in percent of the pages of the step
    #[arg(long, value_name = "PERCENT", default_value_t = 12.5, value_parser = percent)]
    capacity_percent: f64,
    /// Budget of the contract `approx`: pages of a plane that a step may read, in percent (default: twice the capacity of tier 0,
    /// since planes share its frames)
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    budget_percent: Option<f64>,
    /// Pages that fit in host memory, in percent of all; the others are on NVMe
    #[arg(long, value_name = "PERCENT", default_value_t = 100.0, value_parser = percent)]
    host_percent: f64,
    /// Bandwidth between tier 0 and host memory, each direction, in GB/s
    #[arg(long, value_name = "GBPS", default_value_t = 25.0, value_parser = gbps)]
    host_gbps: f64,
    /// Bandwidth between host memory and NVMe, in GB/s
    #[arg(long, value_name = "GBPS", default_value_t = 6.0, value_parser = gbps)]
    nvme_gbps: f64,
    /// Time of a plane in microseconds (default: the maximum time of the oracle's loads for one plane of a step, so that the
    /// bandwidth is sufficient)
    #[arg(long, value_name = "MICROSECONDS", value_parser = plane_us)]
    plane_us: Option<f64>,
    /// Bytes of a page on a link (default: 4096 per token, as of a layer of an 8B model with grouped queries)
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(64..=(1 << 30)))]
    page_bytes: Option<u32>,
    /// Print one JSON object only
    #[arg(long)]
    json: bool,
    /// Draw the shares of attention by plane as SVG
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
}

fn plane_us(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(us) if (0.001..=1e9).contains(&us) => Ok(us),
        _ => Err("expected microseconds, 0.001 to 1000000000".into()),
    }
}

/// Replay, and return the output.
pub(super) fn run(args: &Args) -> Result<Told, ReplayError> {
    let trace = read(&args.trace)?;
    let page_bytes = match args.page_bytes {
        Some(bytes) => bytes,
        None => bytes_of(&trace, &[trace.page_tokens, TOKEN_BYTES])?,
    };
    // The size of digests is a share of the pages that they describe.
    let own_bytes = bytes_of(&trace, &[trace.page_tokens, trace.kv_heads, trace.head_dim, KV_BYTES])?;
    check_capacity(&trace, args.capacity_percent)?;
    let bandwidths = Bandwidths { host: args.host_gbps, nvme: args.nvme_gbps };
    let oracle = Oracle::new(&trace, args.capacity_percent);
    let estimates = Estimates::new(&trace, own_bytes)?;
    // 10^9 bytes a second is one byte a nanosecond.
    let oracle_ns = oracle.moves() as f64 * f64::from(page_bytes) / args.host_gbps;
    let plane_ns = args.plane_us.map_or(oracle_ns, |us| us * 1000.0).ceil().max(1.0) as u64;
    let (capacity_percent, host_percent) = (args.capacity_percent, args.host_percent);
    let budget_percent = args.budget_percent.unwrap_or(2.0 * capacity_percent).min(100.0);
    let setup = Setup { budget_percent, capacity_percent, host_percent, bandwidths, page_bytes, plane_ns };
    let exact = exact::replay(&trace, setup);
    let outcome = drive::replay(Known { trace: &trace, oracle: &oracle, estimates: &estimates }, setup)?;
    let baselines = Baselines::new(&trace, &oracle, &estimates, capacity_percent);
    let sizes = Sizes { page_bytes, own_bytes, digest_bytes: estimates.digest_bytes, plane_ns };
    let figures = Figures::of(&outcome, &baselines, sizes);
    if let Some(path) = &args.chart {
        draw(path, &figures, capacity_percent)?;
    }
    Ok(tell(args, &figures, &exact))
}

/// Return the figures, and the error if some are missing.
fn tell(args: &Args, figures: &Figures, exact: &Result<Exact, ReplayError>) -> Told {
    let text = if args.json { output::json_line(&figures.json(exact)) } else { figures.table(exact) };
    Told { text, failed: exact.as_ref().err().map(|error| format!("exact: {error}")) }
}

/// Check that tier 0 can hold the pages that every step reads, and at least one more.
fn check_capacity(trace: &Attention, capacity_percent: f64) -> Result<(), ReplayError> {
    let (room, least) = (room(trace, 0, capacity_percent), NEEDED + 1);
    if room >= least {
        return Ok(());
    }
    let expected = format!("at least {least} pages per plane (of {} at the first step)", trace.pages_at(0));
    Err(ReplayError::Setting {
        what: "--capacity-percent",
        value: format!("{capacity_percent} ({room} pages)"),
        expected,
    })
}

fn read(path: &Path) -> Result<Attention, ReplayError> {
    let failed = |source| ReplayError::File { tried: "read", path: path.into(), source };
    let file = open(path)?;
    let length = file.metadata().map_err(failed)?.len();
    if length > BYTES_MAX {
        let (value, expected) = (length.to_string(), format!("at most {BYTES_MAX} bytes"));
        return Err(ReplayError::Setting { what: "the trace's length", value, expected });
    }
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Attention::parse(bytes).map_err(|broken| ReplayError::trace(path, broken))
}

fn bytes_of(trace: &Attention, factors: &[usize]) -> Result<u32, ReplayError> {
    let bytes =
        factors.iter().try_fold(1usize, |all, factor| all.checked_mul(*factor)).filter(|&bytes| bytes <= 1 << 30);
    bytes.and_then(|bytes| u32::try_from(bytes).ok()).ok_or_else(|| ReplayError::Setting {
        what: "the trace's page size",
        value: format!("{} tokens", trace.page_tokens),
        expected: "at most 1 GiB; override with --page-bytes".into(),
    })
}

fn draw(path: &Path, figures: &Figures, capacity_percent: f64) -> Result<(), ReplayError> {
    let line = |name: &str, bound: bool, of: fn(&figures::Plane) -> f64| {
        let points = figures.planes.iter().enumerate().map(|(plane, figure)| (plane as f64, of(figure))).collect();
        Line { name: name.into(), points, bound }
    };
    let lines = [
        line("oracle", true, |plane| plane.oracle),
        line("last step's pages", true, |plane| plane.last_step),
        line("true query's digests", true, |plane| plane.true_query),
        line("approx", false, |plane| plane.mass_recall),
    ];
    chart::shares(path, &lines, capacity_percent).map_err(|why| ReplayError::Chart { path: path.into(), why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn what_exact_failed_of_is_told_beside_the_other_figures() {
        for (words, fail) in
            [(&["replay", "TRACE"][..], true), (&["replay", "TRACE", "--json"], true), (&["replay", "TRACE"], false)]
        {
            let args = Line::try_parse_from(words).expect("a line that parses").args;
            let exact = if fail { Err(ReplayError::Odd("no progress".into())) } else { Ok(Exact::default()) };
            let told = tell(&args, &Figures::default(), &exact);
            assert_eq!(told.text.contains("no progress"), fail, "{}", told.text);
            assert!(told.text.contains("coverage"), "{}", told.text);
            assert_eq!(told.failed.is_some_and(|why| why.contains("exact") && why.contains("no progress")), fail);
        }
    }
}

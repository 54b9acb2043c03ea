//! Cost of attention scores in the core: predictor and planner, from the engine's scores to the ordered loads.
//!
//! The core is driven as by the daemon, over simulated links, with a sequence that does not fit in tier 0. Only the handling of
//! scores is measured, not the loads. The cost of reporting scores when everything fits is measured with the demo's model and a
//! private daemon.

mod engine;
mod fits;
mod model;

use super::report::{Report, Target};
use super::{BenchError, Output};

/// Pages of the sequence, planes, and measured steps.
const SIZES: [(u32, usize, u32); 3] = [(256, 8, 512), (2048, 8, 192), (32_768, 4, 64)];
const NS: Target = Target::AtMost(5.0);
const STEP_PERCENT: Target = Target::AtMost(2.0);

/// Flags of `kvtide bench attention`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct AttentionArgs {
    /// Prompt tokens of the test where everything fits. The default is long enough for attention to dominate a step, as in the demo
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=4096))]
    prefill: u32,
    /// Measured decode steps of that test
    #[arg(long, default_value_t = 768, value_parser = clap::value_parser!(u32).range(8..=2048))]
    decode: u32,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Run the benchmark.
pub(super) fn measure(args: &AttentionArgs) -> Result<Report, BenchError> {
    let mut report = Report::default();
    for (pages, planes, steps) in SIZES {
        super::progress(&format!("scores of a sequence of {pages} pages"));
        let cost = engine::measure(planes, pages, steps)?;
        let unit = "ns/page/plane";
        report.number(format!("ns_{pages}.all"), format!("predictor and planner, {pages} pages"), cost.all, unit, NS);
        report.number(format!("ns_{pages}.loads"), "  loads ordered", cost.loads, "/plane/step", None);
    }
    super::progress("demo model, everything fits in tier 0");
    let fits = fits::measure(args.prefill as usize, args.decode as usize)?;
    let core_ns = engine::fitting(fits.planes, fits.pages as u32)?;
    let percent = |ns: f64| 100.0 * ns / fits.step_ns;
    let all_ns = fits.more_ns + core_ns * fits.planes as f64;
    report.number("fits.step_percent", "scores, everything fits", percent(all_ns), "% of a step", STEP_PERCENT);
    let what = "  of that in the engine";
    report.number("fits.engine_percent", what, percent(fits.more_ns), "% of a step", None);
    report.number("fits.core_ns", "  of that in the core", core_ns, "ns/plane", None);
    report.number("fits.step_us", "  step without scores", fits.step_ns / 1e3, "us", None);
    Ok(report)
}

//! What attention costs the core: predictor and planner, from an engine's scores to the loads that are ordered for them.
//!
//! The core is driven as the daemon drives it, over simulated links, by a sequence that does not fit; only the handling of scores is
//! measured, not the loads themselves. What telling scores costs where everything fits is measured on the demo's model beside a
//! private daemon.

mod engine;
mod fits;
mod model;

use super::report::{Report, Target};
use super::{BenchError, Output};

/// Pages of the sequence, planes, and steps that are measured.
const SIZES: [(u32, usize, u32); 3] = [(256, 8, 512), (2048, 8, 192), (32_768, 4, 64)];
const NS: Target = Target::AtMost(5.0);
const STEP_PERCENT: Target = Target::AtMost(2.0);

/// What `kvtide bench attention` takes.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct AttentionArgs {
    /// Tokens of the demo's prompt, where everything fits: pages enough that attention is most of a step, as it is in the demo
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=4096))]
    prefill: u32,
    /// Decode steps that are measured there
    #[arg(long, default_value_t = 768, value_parser = clap::value_parser!(u32).range(8..=2048))]
    decode: u32,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Measures.
pub(super) fn measure(args: &AttentionArgs) -> Result<Report, BenchError> {
    let mut report = Report::default();
    for (pages, planes, steps) in SIZES {
        super::progress(&format!("scores of a sequence of {pages} pages"));
        let cost = engine::measure(planes, pages, steps)?;
        let unit = "ns a page and plane";
        report.number(format!("ns_{pages}.all"), format!("predictor and planner, {pages} pages"), cost.all, unit, NS);
        report.number(format!("ns_{pages}.predictor"), "  predictor alone, at every page", cost.predictor, unit, None);
        report.number(format!("ns_{pages}.worst"), "  plane and step, p99", cost.worst, unit, None);
        report.number(format!("ns_{pages}.loads"), "  loads ordered", cost.loads, "a plane and step", None);
    }
    super::progress("a step of the demo's model in which everything fits");
    let fits = fits::measure(args.prefill as usize, args.decode as usize)?;
    let core_ns = engine::fitting(fits.planes, fits.pages as u32)?;
    let percent = |ns: f64| 100.0 * ns / fits.step_ns;
    let all_ns = fits.more_ns + core_ns * fits.planes as f64;
    report.number("fits.step_percent", "scores where everything fits", percent(all_ns), "% of a step", STEP_PERCENT);
    let what = "  of it in the engine's process";
    report.number("fits.engine_percent", what, percent(fits.more_ns), "% of a step", None);
    report.number("fits.core_ns", "  of it in the core", core_ns, "ns a plane", None);
    report.number("fits.step_us", "  the step without scores", fits.step_ns / 1e3, "us", None);
    Ok(report)
}

//! `kvtide replay`: simulation of a trace with a policy. The shipped core makes the decisions, in simulated time, over links of
//! configured bandwidth.
//!
//! `trace/` reads traces, `machine/` is the core with simulated devices, `attention/` and `requests/` drive it as an engine would
//! and count, `chart` draws. The command line calls [`run`], tests call [`told`], and `kvtide bench attention` uses `machine/`.
//! Nothing else may use this module, and it does not depend on the daemon.

mod attention;
mod chart;
mod error;
pub(crate) mod machine;
mod progress;
mod requests;
pub mod trace;

pub use error::ReplayError;

use kvtide_daemon::output;
use std::path::Path;
use std::process::ExitCode;

/// Exit status of a replay that failed, completely or in part.
const NOT_RUN: u8 = 2;

/// Output of a replay.
#[derive(Debug)]
pub struct Told {
    /// The figures.
    pub text: String,
    /// Error of a part that could not be run.
    pub failed: Option<String>,
}

/// Flags of `kvtide replay`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    which: Which,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Which {
    /// Simulate an attention trace: attention in tier 0 at the time of use, prefetched pages, late pages
    #[command(after_help = "Examples:\n  kvtide replay attention trace.safetensors\n  \
        kvtide replay attention trace.safetensors --capacity-percent 25 --json")]
    Attention(attention::Args),
    /// Simulate a request trace: hit rate and bytes written, by eviction policy
    #[command(
        after_help = "Examples:\n  kvtide replay requests trace.jsonl\n  kvtide replay requests trace.jsonl --all --json"
    )]
    Requests(requests::Args),
}

/// Replay a trace and print the results.
#[must_use]
pub fn run(args: &Args) -> ExitCode {
    // The tables of a large trace are accessed at random.
    kvtide_wire::os::heap::want_huge_pages();
    let Told { text, failed } =
        told(args).unwrap_or_else(|error| Told { text: String::new(), failed: Some(error.to_string()) });
    let written = output::write(&text);
    let status = match failed {
        None => ExitCode::SUCCESS,
        Some(why) => {
            output::say(format_args!("kvtide replay: {why}"));
            ExitCode::from(NOT_RUN)
        }
    };
    output::ended(written, status)
}

/// Replay a trace and return the results.
///
/// # Errors
/// The trace cannot be read, is broken, or does not fit the flags.
pub fn told(args: &Args) -> Result<Told, ReplayError> {
    match &args.which {
        Which::Attention(args) => attention::run(args),
        Which::Requests(args) => Ok(Told { text: requests::run(args)?, failed: None }),
    }
}

/// Parse a share in percent, above 0 and at most 100.
fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("expected a number above 0, at most 100".into()),
    }
}

/// Parse a bandwidth in gigabytes a second.
fn gbps(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gbps) if (0.001..=1e6).contains(&gbps) => Ok(gbps),
        _ => Err("expected gigabytes a second, 0.001 to 1000000".into()),
    }
}

fn open(path: &Path) -> Result<std::fs::File, ReplayError> {
    std::fs::File::open(path).map_err(|source| ReplayError::File { tried: "open", path: path.into(), source })
}

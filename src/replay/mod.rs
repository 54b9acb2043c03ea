//! `kvtide replay`: a policy's worth, by a trace. The shipped core decides, in simulated time, over links of configured bandwidth.
//!
//! `trace/` reads traces, `machine/` is the core with simulated devices, `attention/` and `requests/` drive it as an engine would and count,
//! `chart` draws. The command line calls [`run`], `kvtide bench attention` drives `machine/`; nothing else may call in here, and nothing
//! in here knows the daemon.

mod attention;
mod chart;
mod error;
pub(crate) mod machine;
mod progress;
mod requests;
#[cfg(test)]
mod tests;
pub mod trace;

pub use error::ReplayError;

use std::path::Path;
use std::process::ExitCode;

/// Exit status of a replay that could not be run.
const NOT_RUN: u8 = 2;

/// What `kvtide replay` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    which: Which,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Which {
    /// A trace of attention: how much of it is in tier 0 when it is wanted, what was prefetched for that, and what came late
    Attention(attention::Args),
    /// A trace of requests: what each order of eviction finds again, and writes
    Requests(requests::Args),
}

/// Replays a trace and prints what came of it.
#[must_use]
pub fn run(args: &Args) -> ExitCode {
    match text(args) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("kvtide replay: {error}");
            ExitCode::from(NOT_RUN)
        }
    }
}

/// What a replay has to say.
fn text(args: &Args) -> Result<String, ReplayError> {
    match &args.which {
        Which::Attention(args) => attention::run(args),
        Which::Requests(args) => requests::run(args),
    }
}

/// A share in percent, above 0 and at most 100.
fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("expected a number above 0, at most 100".into()),
    }
}

/// A bandwidth in gigabytes a second.
fn gbps(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gbps) if (0.001..=1e6).contains(&gbps) => Ok(gbps),
        _ => Err("expected gigabytes a second, 0.001 to 1000000".into()),
    }
}

fn open(path: &Path) -> Result<std::fs::File, ReplayError> {
    std::fs::File::open(path).map_err(|source| ReplayError::File { tried: "open", path: path.into(), source })
}

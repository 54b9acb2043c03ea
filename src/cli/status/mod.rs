//! `kvtide status`: prints the status of a daemon, as text or as the daemon's JSON (`--json`).
//!
//! It requests `/v1/status` over the daemon's HTTP socket or address ([`super::which`]).

mod text;
pub(super) mod units;

use super::which::Which;
use clap::Args;
use kvtide_daemon::error::Error;
use kvtide_daemon::output;
use kvtide_daemon::status::Snapshot;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Exit status when the daemon answers but is unhealthy or not ready.
const EXIT_UNWELL: u8 = 3;

/// Time between two questions of `--wait`.
const WAIT_PACE: Duration = Duration::from_millis(50);

/// Flags of `kvtide status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print the full status as JSON
    #[arg(long)]
    json: bool,
    /// Wait until a daemon serves and is healthy, at most this many seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "60", value_parser = clap::value_parser!(u64).range(..=86_400))]
    wait: Option<u64>,
    #[command(flatten)]
    which: Which,
}

/// Print the status. Exit status 0: serving and healthy; 1: no daemon answers; 3: unhealthy or not serving.
pub(super) fn run(args: &StatusArgs) -> ExitCode {
    match show(args) {
        Ok((status, text)) => {
            output::print(&text, if status.is_well() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_UNWELL) })
        }
        Err(error) => {
            output::say(format_args!("kvtide: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn show(args: &StatusArgs) -> Result<(Snapshot, String), Error> {
    let deadline = Instant::now() + Duration::from_secs(args.wait.unwrap_or(0));
    let (status, text) = loop {
        match args.which.status() {
            Ok((_, status, text)) if status.is_well() || Instant::now() >= deadline => break (status, text),
            Err(error) if Instant::now() >= deadline => return Err(error),
            // PACE: of the questions while a daemon starts.
            Ok(_) | Err(_) => std::thread::sleep(WAIT_PACE),
        }
    };
    let text = if args.json { text } else { text::render(&status) };
    Ok((status, text))
}

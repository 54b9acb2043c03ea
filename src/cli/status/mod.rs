//! `kvtide status`: prints the status of a daemon, as text or as the daemon's JSON (`--json`).
//!
//! It requests `/v1/status` over the daemon's HTTP socket or address ([`super::which`]).

mod text;
pub(super) mod units;

use super::waiting::Waiting;
use super::which::Which;
use clap::Args;
use kvtide_daemon::error::Error;
use kvtide_daemon::output;
use kvtide_daemon::status::Snapshot;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between two questions of `--wait`.
const WAIT_PACE: Duration = Duration::from_millis(50);

/// Flags of `kvtide status`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0: it serves and is healthy; 1: it is unhealthy, starts or shuts down; 3: no daemon answers.\n\n\
    Examples:\n  kvtide status\n  kvtide status --wait 60 --json"
)]
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

/// Print the status.
pub(super) fn run(args: &StatusArgs) -> ExitCode {
    match show(args) {
        Ok((status, text)) => output::print(&text, ExitCode::from(if status.is_well() { 0 } else { output::FAILED })),
        Err(error) => output::failed(&error),
    }
}

fn show(args: &StatusArgs) -> Result<(Snapshot, String), Error> {
    let deadline = Instant::now() + Duration::from_secs(args.wait.unwrap_or(0));
    let mut waiting = Waiting::new();
    let (status, text) = loop {
        let why = match args.which.status() {
            Ok((_, status, text)) if status.is_well() || Instant::now() >= deadline => break (status, text),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Ok((_, status, _)) => format!("waiting for the daemon: {}, {}", status.stage, status.health()),
            Err(_) => "waiting for a daemon to answer".to_owned(),
        };
        waiting.tell(&why, Some(deadline.saturating_duration_since(Instant::now())));
        // PACE: of the questions while a daemon starts.
        std::thread::sleep(WAIT_PACE);
    };
    drop(waiting);
    let text = if args.json { text } else { text::render(&status) };
    Ok((status, text))
}

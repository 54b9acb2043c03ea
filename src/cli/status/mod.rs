//! `kvtide status`: prints the status of a daemon, as text or as the daemon's JSON (`--json`).
//!
//! It requests `/v1/status` (`kvtide_daemon::http::client`).

mod text;
pub(super) mod units;

use clap::Args;
use kvtide_daemon::config::constants;
use kvtide_daemon::error::Error;
use kvtide_daemon::http::client;
use kvtide_daemon::output;
use kvtide_daemon::status::Snapshot;
use std::process::ExitCode;

/// Exit status when the daemon answers but is unhealthy or not ready.
const EXIT_UNWELL: u8 = 3;

/// Flags of `kvtide status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print the full status as JSON
    #[arg(long)]
    json: bool,
    /// HTTP address of the daemon
    #[arg(long, value_name = "ADDR", default_value = constants::HTTP_LISTEN)]
    http: String,
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
    let text = client::get(&args.http, client::STATUS)?;
    let status = Snapshot::read(&args.http, &text)?;
    let text = if args.json { text } else { text::render(&status) };
    Ok((status, text))
}

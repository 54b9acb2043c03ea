//! `kvtide status`: how a daemon stands, for people, or as it tells it (`--json`).
//!
//! What it asks is `/v1/status` ([`client`]); [`model`] is what of the answer the tool reads, by `top` too. It must not know
//! the daemon's own types: the daemon may be of another version.

pub(super) mod client;
pub(super) mod model;
mod text;
pub(super) mod units;

use crate::config::defaults;
use crate::error::Error;
use crate::output;
use clap::Args;
use model::Status;
use std::process::ExitCode;

/// Exit status when the daemon answers and is not well or not ready.
const EXIT_UNWELL: u8 = 3;

/// Flags of `kvtide status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Prints everything that the daemon tells, as JSON
    #[arg(long)]
    json: bool,
    /// Where the daemon serves HTTP
    #[arg(long, value_name = "ADDR", default_value = defaults::HTTP_LISTEN)]
    http: String,
}

/// Prints how a daemon stands. 0: it serves and is healthy; 1: no daemon answers; 3: it answers and is not well.
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

fn show(args: &StatusArgs) -> Result<(Status, String), Error> {
    let text = client::get(&args.http, client::STATUS)?;
    let status = model::parse(&args.http, &text)?;
    let text = if args.json { text } else { text::render(&status) };
    Ok((status, text))
}

//! `kvtide check-config`: validates a configuration file and prints the effective settings and findings.

use clap::Args;
use kvtide_daemon::check::Report;
use kvtide_daemon::config::{self, Overrides, Source};
use kvtide_daemon::output;
use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `kvtide check-config`.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Configuration file in TOML [default: built-in settings]
    file: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Exit with status 1 on warnings (errors always exit with status 2)
    #[arg(long)]
    strict: bool,
    /// Skip checks that depend on this machine, for a file of another machine
    #[arg(long)]
    any_machine: bool,
    /// Print a file with every key, its documentation and its default, and check nothing
    #[arg(long, conflicts_with_all = ["file", "json", "strict", "any_machine"])]
    reference: bool,
}

pub(super) fn run(args: &CheckArgs) -> ExitCode {
    if args.reference {
        return output::print(&config::reference(), ExitCode::SUCCESS);
    }
    let report = match Source::new(args.file.clone(), Overrides::default()) {
        Ok(source) => Report::of(&source, args.any_machine),
        Err(error) => Report::refused("", &error),
    };
    let status = report.exit(args.strict);
    if args.json { output::print_json(&report, status) } else { report.print(status) }
}

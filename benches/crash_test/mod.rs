//! `kvtide crash-test`: kills a daemon under load with SIGKILL at random moments, restarts it at once, and reads back all blocks
//! reported stored through the client, byte by byte.
//!
//! There are two phases. In the first, the NVMe tier has room for everything, so a stored block that is not found is lost. In the
//! second, the tier evicts, and blocks that are found must be correct. `plan` has the parameters of a run, `content` the contents
//! and their reported state, `round` one kill, `session` and `work` the load, `check` the reading back.
//!
//! This module is written like any engine: it uses the client crate and nothing else of the daemon. Only the command line calls
//! [`run`].

mod args;
mod check;
mod content;
mod error;
mod plan;
mod report;
mod round;
mod session;
mod store;
mod work;

pub use args::Args;

use error::CrashError;
use kvtide_daemon::output;
use plan::{Phase, Plan};
use report::Report;
use std::process::ExitCode;

/// Exit status of a run that found wrong bytes or lost a stored block.
const BROKEN: u8 = 1;
/// Exit status of a run that could not finish.
const NOT_RUN: u8 = 2;

/// Run the crash test.
#[must_use]
pub fn run(args: &Args) -> ExitCode {
    match all_rounds(args) {
        Ok(report) => {
            let status = if report.is_good() { ExitCode::SUCCESS } else { ExitCode::from(BROKEN) };
            output::print(&if args.json { report.json() } else { report.text() }, status)
        }
        Err(error) => {
            output::say(format_args!("kvtide crash-test: {error}"));
            ExitCode::from(NOT_RUN)
        }
    }
}

fn all_rounds(args: &Args) -> Result<Report, CrashError> {
    let plan = Plan::new(args);
    output::say(format_args!("kvtide crash-test: seed {} (repeat with --seed {})", plan.seed, plan.seed));
    let mut report = Report::new(&plan);
    for phase in [Phase::Keeping, Phase::Evicting].into_iter().filter(|phase| plan.rounds(*phase) > 0) {
        let mut run = round::Run::new(&plan, phase)?;
        for round in 0..plan.rounds(phase) {
            let outcome = run.round()?;
            output::say(format_args!("kvtide crash-test: {} round {}: {outcome}", phase.name(), round + 1));
            report.add(phase, &outcome);
        }
        run.end(phase, &mut report)?;
    }
    Ok(report)
}

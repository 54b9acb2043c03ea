//! `kvtide crash-test`: a loaded daemon is killed with SIGKILL at random moments, started again at once, and everything that it
//! had reported stored is read back through the client, byte by byte.
//!
//! Two phases. In the first the NVMe tier holds everything that is ever published, so whatever was reported stored and is
//! not found is lost. In the second it does not, and what is found must be right. `plan` is what one run is made of, `content`
//! what there is to store and what was said about it, `round` one kill, `session` and `work` the load, `check` the reading back.
//! This room is an engine, as any engine would be written: it uses the client crate and nothing of the daemon's inside. The
//! command line calls [`run`]; nothing else may call in here.

mod args;
mod check;
mod content;
mod error;
mod plan;
mod random;
mod report;
mod round;
mod session;
mod store;
mod work;

pub use args::Args;

use crate::output;
use error::CrashError;
use plan::{Phase, Plan};
use report::Report;
use std::process::ExitCode;

/// Exit status of a run that found wrong bytes, or did not find what was reported stored.
const BROKEN: u8 = 1;
/// Exit status of a run that did not reach its end.
const NOT_RUN: u8 = 2;

/// Runs the crash test.
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
    output::say(format_args!("kvtide crash-test: seed {} (--seed {} kills at the same moments)", plan.seed, plan.seed));
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

//! `kvtide demo`: an engine process decodes a trained model over real text with its KV in three tiers of kvtide, and another one
//! answers eight chats through the block API ([`chats`]). Every logit is compared bit for bit with a run without kvtide.
//!
//! This module is written like any engine: it uses the client crate and nothing else of the daemon. The command line calls [`run`],
//! [`engine::run`] and [`chats::engine::run`]. `bench codec` uses its model to compute KV, `bench attention` uses it for decoding. Nothing else may use
//! this module.

mod args;
pub mod attention;
pub mod chats;
mod console;
mod contracts;
pub mod engine;
mod error;
mod html;
pub mod kv;
pub mod model;
mod nvme;
mod outcome;
mod processes;
pub(crate) mod prompt;
mod report;
mod setup;
pub(crate) mod sizes;
mod supervise;

use kvtide_daemon::output;
use std::process::ExitCode;
use std::time::Instant;
use std::{fs, io};

pub use args::Args;
pub use chats::ChatArgs;
pub use engine::EngineArgs;

use chats::Plan;
use chats::supervise::Dirs;
use console::Console;
use error::DemoError;
use model::{CONFIG_JSON, Config};
use outcome::Outcome;
use setup::Setup;

/// Exit status of a demo with results that differ.
const NOT_IDENTICAL: u8 = 1;
/// Exit status of a demo that did not finish.
const NOT_RUN: u8 = 2;
/// Bytes of the prompt's end that are shown.
const SHOWN: usize = 400;

/// Run the demo.
#[must_use]
pub fn run(args: &Args) -> ExitCode {
    match show(args) {
        Ok((identical, written)) => {
            output::ended(written, if identical { ExitCode::SUCCESS } else { ExitCode::from(NOT_IDENTICAL) })
        }
        Err(error) => {
            output::say(format_args!("\nkvtide demo: {error}"));
            match error {
                // As a shell reports a process that was ended by a signal.
                DemoError::Signal(signal) => ExitCode::from(128 + signal as u8),
                _ => ExitCode::from(NOT_RUN),
            }
        }
    }
}

/// Run the demo and print its results. Return whether all results were identical to those without kvtide, and the result of printing.
fn show(args: &Args) -> Result<(bool, io::Result<()>), DemoError> {
    let began = Instant::now();
    let config = Config::parse(CONFIG_JSON)?;
    let setup = Setup::new(args, &config)?;
    let (wanted, most) = (setup.sizes.tokens(), config.max_position_embeddings);
    if wanted > most {
        return Err(DemoError::Long { wanted, most });
    }
    let prompt = prompt::prompt(args.text.as_deref(), setup.sizes.prefill)?;
    let plan = Plan::new(args.document as usize, args.answer as usize, &config);
    let mut console = Console::new(args.json, args.details, &prompt[prompt.len().saturating_sub(SHOWN)..]);
    let mut outcome = Outcome { chats_skipped: args.chats_skipped(), ..Outcome::default() };
    processes::with_signals(|sender, events| {
        console.say(outcome::TITLE);
        // The chats are what most engines use kvtide for.
        if outcome.chats_skipped.is_none() {
            let dirs = Dirs { dir: args.dir.as_deref(), nvme: args.nvme_dir.as_deref() };
            let results = chats::supervise::chats(&plan, dirs, args.flip_bit, &mut console, (sender, events))?;
            outcome.chats = Some(results);
        }
        console.say(&outcome.chats_text());
        if args.runs_paged() {
            let results = supervise::paged(args, &setup, &mut console, sender, events)?;
            console.details(&format!("{}\n{}{}\n\n", results.table(), results.contracts(), results.verdict()));
            outcome.paged = Some(results);
        }
        console.say(&outcome.paged_text());
        Ok(())
    })?;
    outcome.seconds = began.elapsed().as_secs_f64();
    if let Some(path) = &args.report {
        let failed = |source| DemoError::Report { path: path.clone(), source };
        fs::write(path, html::page(&outcome)).map_err(failed)?;
    }
    console.say(&outcome.last_text(args.report.as_deref()));
    let written = if args.json { output::write(&outcome.json()) } else { console.written() };
    Ok((outcome.identical(), written))
}

//! `kvtide demo`: an engine process decodes a trained model over real text with its KV in three tiers of kvtide. Every logit is
//! compared bit for bit with a run over a plain array.
//!
//! This module is written like any engine: it uses the client crate and nothing else of the daemon. The command line calls [`run`]
//! and [`engine::run`]. `bench codec` uses its model to compute KV, `bench attention` uses it for decoding. Nothing else may use
//! this module.

mod args;
pub mod attention;
mod console;
mod contracts;
pub mod engine;
mod error;
pub mod kv;
pub mod model;
mod nvme;
pub(crate) mod prompt;
mod report;
mod setup;
pub(crate) mod sizes;
mod supervise;

use kvtide_daemon::output;
use std::io;
use std::process::ExitCode;

pub use args::Args;
pub use engine::EngineArgs;

use console::Console;
use error::DemoError;
use model::{CONFIG_JSON, Config};
use setup::Setup;
use supervise::demo;

/// Exit status of a demo with differing logits.
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

/// Run the demo and print its results. Return whether every logit was identical, and the result of printing.
fn show(args: &Args) -> Result<(bool, io::Result<()>), DemoError> {
    let config = Config::parse(CONFIG_JSON)?;
    let setup = Setup::new(args, &config)?;
    let (wanted, most) = (setup.sizes.tokens(), config.max_position_embeddings);
    if wanted > most {
        return Err(DemoError::Long { wanted, most });
    }
    let prompt = prompt::prompt(args.text.as_deref(), setup.sizes.prefill)?;
    let mut console = Console::new(args.json, &prompt[prompt.len().saturating_sub(SHOWN)..]);
    let results = demo(args, &setup, &mut console)?;
    console.say(&format!("{}\n{}{}\n", results.table(), results.contracts(), results.verdict()));
    let written = if args.json { output::write(&(results.json()? + "\n")) } else { console.written() };
    Ok((results.identical(), written))
}

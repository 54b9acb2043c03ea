//! `kvtide demo`: an engine process decodes a trained model over real text, its KV held by kvtide in three tiers, and every
//! logit is compared bit for bit with a run over a plain array.
//!
//! This room is an engine, as any engine would be written: it uses the client crate and nothing of the daemon's inside. The
//! command line calls [`run`] and [`engine::run`]; `bench codec` has the model compute KV, `bench attention` has it decode. Nothing else
//! may call in here.

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

use crate::output;
use std::io;
use std::process::ExitCode;

pub use args::Args;
pub use engine::EngineArgs;

use console::Console;
use error::DemoError;
use model::{CONFIG_JSON, Config};
use setup::Setup;
use supervise::demo;

/// Exit status of a demo that found other bits.
const NOT_IDENTICAL: u8 = 1;
/// Exit status of a demo that did not reach its end.
const NOT_RUN: u8 = 2;
/// Tokens of the prompt's end that are shown.
const SHOWN: usize = 400;

/// Runs the demo.
#[must_use]
pub fn run(args: &Args) -> ExitCode {
    match show(args) {
        Ok((identical, written)) => {
            output::ended(written, if identical { ExitCode::SUCCESS } else { ExitCode::from(NOT_IDENTICAL) })
        }
        Err(error) => {
            output::say(format_args!("\nkvtide demo: {error}"));
            match error {
                // As a shell reports a process that a signal ended.
                DemoError::Signal(signal) => ExitCode::from(128 + signal as u8),
                _ => ExitCode::from(NOT_RUN),
            }
        }
    }
}

/// Return true if every logit was identical, and the result of printing that.
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

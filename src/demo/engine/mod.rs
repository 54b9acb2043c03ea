//! The engine's process: `kvtide demo-engine`, started by `kvtide demo` and by nobody else.
//!
//! A first, short-lived one sees whether the daemon has room for all the KV. The second decodes the same text three times, over a
//! plain array, over kvtide with everything resident, and over kvtide with a small tier 0, compares every logit (on a device the last two, which
//! the same kernels compute), then with the small tier 0 once more for each reading contract beside exact, fed the reference's tokens, and reports through its standard output ([`Message`]). It ends with its parent.
//!
//! It reaches the daemon through the client only, as any engine would.

mod compare;
mod message;
mod run;
mod stages;
#[cfg(test)]
mod tests;

use crate::output;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use kvtide_client::Contract;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

pub use compare::{Difference, Drift, Logits, Verdict};
pub use message::{Cause, Checkpoint, Counters, Measured, Message, Reading, Stage, space_of};
pub use run::Run;

use super::args::Device;
use super::model::WeightsError;
use super::prompt::PromptError;

/// Flags between the demo and its engine.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineArgs {
    /// Socket of the daemon
    #[arg(long)]
    pub socket: PathBuf,
    /// Tokens to prefill
    #[arg(long)]
    pub prefill: usize,
    /// Tokens to decode
    #[arg(long)]
    pub decode: usize,
    /// Text to prefill from; the built-in one by default
    #[arg(long)]
    pub text: Option<PathBuf>,
    /// Where tier 0 is
    #[arg(long, default_value = "cpu")]
    pub device: Device,
    /// Frames of the small tier 0
    #[arg(long)]
    pub tier0_frames: u32,
    /// Contracts beside exact that it decodes by
    #[arg(long = "contract")]
    pub contracts: Vec<Contract>,
    /// Window frames beside them
    #[arg(long, default_value_t = 0)]
    pub host_windows: u32,
    /// Only sees whether the daemon has room for the KV, without a model
    #[arg(long)]
    pub rehearse: bool,
    /// Process that started this one
    #[arg(long)]
    pub parent: i32,
}

/// Why the engine could not start, or not go on reporting. What happens within a stage is a [`Message::Failed`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The model does not load.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The text cannot be had.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// There is no memory for the plain array.
    #[error("cannot allocate the plain array: {0}")]
    Plain(#[source] io::Error),
    /// The parent is gone, or does not read or answer.
    #[error("cannot report to the demo: {0}")]
    Report(#[source] io::Error),
    /// The process could not be tied to its parent.
    #[error("cannot tie the engine to the demo's process: {0}")]
    Parent(#[source] io::Error),
}

/// Runs the rehearsal, or all stages.
#[must_use]
pub fn run(args: &EngineArgs) -> ExitCode {
    let stages = if args.rehearse { stages::rehearse } else { stages::run };
    match tie_to_parent(args.parent).and_then(|()| stages(args, &mut Report)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            output::say(format_args!("kvtide demo-engine: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Has the kernel kill this process when its parent ends, however it ends.
fn tie_to_parent(parent: i32) -> Result<(), EngineError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|errno| EngineError::Parent(errno.into()))?;
    // It may have ended before the line above.
    if getppid() == Pid::from_raw(parent) { Ok(()) } else { Err(EngineError::Parent(io::Error::other("it has ended"))) }
}

/// The parent's end of the pipe.
struct Report;

impl Report {
    fn send(&mut self, message: &Message) -> Result<(), EngineError> {
        let line = || {
            let mut out = io::stdout().lock();
            serde_json::to_writer(&mut out, message)?;
            out.write_all(b"\n")?;
            out.flush()
        };
        line().map_err(EngineError::Report)
    }

    /// Waits until the parent has taken down how the daemon stands.
    fn checkpoint(&mut self, stage: Stage, at: Checkpoint) -> Result<(), EngineError> {
        self.send(&Message::Checkpoint { stage, at })?;
        match io::stdin().lock().read_line(&mut String::new()) {
            Ok(0) => Err(EngineError::Report(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
            Err(error) => Err(EngineError::Report(error)),
        }
    }
}

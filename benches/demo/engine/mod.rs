//! The engine process: `kvtide demo-engine`, started by `kvtide demo`.
//!
//! A first, short-lived engine checks that the daemon has room for all the KV. The second decodes the same text three times: over a
//! plain array, over kvtide with everything resident, and over kvtide with a small tier 0. It compares every logit; on a device, it
//! compares the last two runs, which use the same kernels. Then it decodes the reference's tokens with the small tier 0 for each
//! other reading contract, without prefetch and with it. It reports on stdout ([`Message`]) and ends with its parent.
//!
//! It uses the client only, like any engine.

mod compare;
mod message;
mod run;
mod stages;
#[cfg(test)]
mod tests;

use kvtide_daemon::output;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use kvtide_client::Contract;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

pub use compare::{Comparison, Difference, Drift, Logits};
pub use message::{Cause, Checkpoint, Counters, Measured, Message, Reading, Stage, space_of};
pub use run::Run;

use super::args::Device;
use super::model::WeightsError;
use super::prompt::PromptError;

/// Flags from the demo to its engine.
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
    /// Text to prefill (default: the built-in text)
    #[arg(long)]
    pub text: Option<PathBuf>,
    /// Device of tier 0
    #[arg(long, default_value = "cpu")]
    pub device: Device,
    /// Frames of the small tier 0
    #[arg(long)]
    pub tier0_frames: u32,
    /// Contracts other than exact to decode with
    #[arg(long = "contract")]
    pub contracts: Vec<Contract>,
    /// Time in microseconds that a step under them waits for selected pages
    #[arg(long, default_value_t = 0)]
    pub max_stall_us: u32,
    /// Decode with each of them without prefetch too
    #[arg(long)]
    pub compare_prefetch: bool,
    /// Mapped frames in addition to tier 0
    #[arg(long, default_value_t = 0)]
    pub host_windows: u32,
    /// Only check that the daemon has room for the KV, without a model
    #[arg(long)]
    pub rehearse: bool,
    /// Process id of the parent
    #[arg(long)]
    pub parent: i32,
}

/// Why the engine could not start or report. Failures within a stage are sent as [`Message::Failed`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The model cannot be loaded.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The text cannot be read.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The plain array cannot be allocated.
    #[error("cannot allocate the plain array: {0}")]
    Plain(#[source] io::Error),
    /// The parent has ended, or does not read or answer.
    #[error("cannot report to the demo: {0}")]
    Report(#[source] io::Error),
    /// The process could not be tied to its parent.
    #[error("cannot tie the engine to the demo's process: {0}")]
    Parent(#[source] io::Error),
}

/// Run the capacity check, or all stages.
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

/// Let the kernel kill this process when its parent ends in any way.
pub(super) fn tie_to_parent(parent: i32) -> Result<(), EngineError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|errno| EngineError::Parent(errno.into()))?;
    // The parent may have ended before the line above.
    if getppid() == Pid::from_raw(parent) {
        Ok(())
    } else {
        Err(EngineError::Parent(io::Error::other("the parent process has ended")))
    }
}

/// Write a message to the parent.
pub(super) fn send_line(message: &impl serde::Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, message)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Wait for a line of the parent.
pub(super) fn answer_of_parent() -> io::Result<String> {
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line),
    }
}

/// Writer of messages to the parent.
struct Report;

impl Report {
    fn send(&mut self, message: &Message) -> Result<(), EngineError> {
        send_line(message).map_err(EngineError::Report)
    }

    /// Wait until the parent has read the daemon's status.
    fn checkpoint(&mut self, stage: Stage, at: Checkpoint) -> Result<(), EngineError> {
        self.send(&Message::Checkpoint { stage, at })?;
        answer_of_parent().map(drop).map_err(EngineError::Report)
    }
}

//! Errors of the demo.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use super::model::WeightsError;
use super::processes::SILENCE;
use super::prompt::PromptError;

/// Why the demo did not finish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// The private daemon did not start.
    #[error(transparent)]
    Daemon(#[from] kvtide_daemon::error::Error),
    /// The text cannot be read.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The model cannot be loaded.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The results cannot be written as JSON.
    #[error("cannot write the results as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A process could not be started or monitored.
    #[error("cannot {what}: {source}")]
    Process {
        /// The action.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// More tokens than the model has positions.
    #[error("{wanted} tokens exceed the model's {most} positions")]
    Long {
        /// Tokens requested.
        wanted: usize,
        /// Maximum number of tokens.
        most: usize,
    },
    /// Tier 0 and host leave nothing for NVMe.
    #[error(
        "tier 0 at {tier0} % and host at {host} % hold all of the KV, and nothing is left for NVMe; use smaller tiers, or \
         disable NVMe with --two-tiers"
    )]
    NothingForNvme {
        /// Requested percentage.
        tier0: u32,
        /// Requested percentage.
        host: u32,
    },
    /// The daemon's status lacks a value.
    #[error("the daemon's status has no {0}")]
    Status(String),
    /// The daemon has too little memory.
    #[error("{stage}: the daemon ran out of memory after {tokens} of {of} tokens: {error}\n{sizes}")]
    Refused {
        /// The run.
        stage: &'static str,
        /// Tokens processed.
        tokens: usize,
        /// Tokens of the run.
        of: usize,
        /// The client's error.
        error: String,
        /// The tiers' sizes, and sufficient ones.
        sizes: String,
    },
    /// The daemon died.
    #[error("the daemon died ({ended}) during the run \"{stage}\", after {tokens} tokens{log}")]
    DaemonDied {
        /// Its exit status.
        ended: String,
        /// The run.
        stage: &'static str,
        /// Tokens processed.
        tokens: usize,
        /// The end of its log.
        log: String,
    },
    /// Another failure in the engine.
    #[error("{stage} failed after {tokens} tokens: {error}")]
    Failed {
        /// The run.
        stage: &'static str,
        /// Tokens processed.
        tokens: usize,
        /// The action, its object, and the reason.
        error: String,
    },
    /// The daemon of the chats died.
    #[error("the daemon of the chats died ({ended}) after {answers} answers{log}")]
    ChatDaemonDied {
        /// Its exit status.
        ended: String,
        /// Answers so far.
        answers: usize,
        /// The end of its log.
        log: String,
    },
    /// Another failure in the engine of the chats.
    #[error("the chats failed after {answers} answers: {error}")]
    Chats {
        /// Answers so far.
        answers: usize,
        /// The action, its object, and the reason.
        error: String,
    },
    /// The report cannot be written.
    #[error("cannot write the report {}: {source}", .path.display())]
    Report {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The engine ended without a final message.
    #[error("the engine died ({0}) before it finished")]
    EngineDied(ExitStatus),
    /// The engine exited with success but without all results.
    #[error("the engine ended without all results")]
    Incomplete,
    /// The engine sent an invalid message.
    #[error("invalid message from the engine: {line:?}: {source}")]
    Nonsense {
        /// The line.
        line: String,
        /// The parse error.
        source: serde_json::Error,
    },
    /// The engine sent no message for too long.
    #[error("no message from the engine for {SILENCE:?}")]
    Silent,
    /// The demo received a signal.
    #[error("ended by signal {0}")]
    Signal(i32),
}

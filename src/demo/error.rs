//! Why a demo did not reach its end.

use std::io;
use std::process::ExitStatus;

use super::model::WeightsError;
use super::prompt::PromptError;
use super::supervise::SILENCE;

/// Why the demo did not reach its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// The private daemon did not start.
    #[error(transparent)]
    Daemon(#[from] crate::error::Error),
    /// The text cannot be had.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The model does not load.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The results cannot be written as JSON.
    #[error("cannot write the results as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A process could not be started or watched.
    #[error("cannot {what}: {source}")]
    Process {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// More tokens than the model has positions.
    #[error("{wanted} tokens are more than the {most} positions that the model was made for")]
    Long {
        /// Tokens asked for.
        wanted: usize,
        /// Most that there may be.
        most: usize,
    },
    /// Tier 0 and host leave nothing for NVMe.
    #[error(
        "tier 0 at {tier0} % and host at {host} % hold all of the KV: nothing is left for NVMe; make them smaller, or leave NVMe \
         out with --two-tiers"
    )]
    NothingForNvme {
        /// Percent asked for.
        tier0: u32,
        /// Percent asked for.
        host: u32,
    },
    /// A contract that the demo's attention on a device does not read by.
    #[error(
        "on a device the demo reads by the contracts exact and approx, not by {0}: bounds are kept in plain memory only"
    )]
    OnDevice(String),
    /// The daemon's status lacks something.
    #[error("the daemon's status has no {0}")]
    Status(String),
    /// The daemon refused for want of room.
    #[error("{stage}: the daemon refused after {tokens} of {of} tokens: {error}\n{sizes}")]
    Refused {
        /// Which run.
        stage: &'static str,
        /// Tokens that it had.
        tokens: usize,
        /// Tokens that it was to have.
        of: usize,
        /// The client's error.
        error: String,
        /// The tiers' sizes, and what would do.
        sizes: String,
    },
    /// The daemon died.
    #[error("the daemon died ({ended}) during the run \"{stage}\", after {tokens} tokens{log}")]
    DaemonDied {
        /// How it ended.
        ended: String,
        /// Which run.
        stage: &'static str,
        /// Tokens that it had.
        tokens: usize,
        /// The end of its log.
        log: String,
    },
    /// Something else went wrong in the engine.
    #[error("{stage} failed after {tokens} tokens: {error}")]
    Failed {
        /// Which run.
        stage: &'static str,
        /// Tokens that it had.
        tokens: usize,
        /// What was tried, on what, and why it failed.
        error: String,
    },
    /// The engine ended without a last word.
    #[error("the engine died ({0}) before it was done")]
    EngineDied(ExitStatus),
    /// The engine ended well, but without the results of all its runs.
    #[error("the engine ended before it had run everything")]
    Incomplete,
    /// The engine said something else than a message.
    #[error("the engine said {line:?}, which is no message: {source}")]
    Nonsense {
        /// What it said.
        line: String,
        /// Why it is none.
        source: serde_json::Error,
    },
    /// The engine said nothing for too long.
    #[error("the engine was silent for {SILENCE:?}")]
    Silent,
    /// The demo was told to end.
    #[error("ended by signal {0}")]
    Signal(i32),
}

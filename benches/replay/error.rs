//! Errors of a replay.

use super::trace::{At, Broken};
use std::path::PathBuf;

/// Why a trace could not be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A file could not be used.
    #[error("cannot {tried} {}: {source}", .path.display())]
    File {
        /// The action.
        tried: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A trace is truncated or inconsistent.
    #[error("{}: {at}: {why}", .path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Position of the error.
        at: At,
        /// Description of the error.
        why: String,
    },
    /// A setting does not fit the trace.
    #[error("{what} is {value}: expected {expected}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: String,
        /// The allowed range.
        expected: String,
    },
    /// The core returned an error.
    #[error("the core: {0}")]
    Core(#[from] kvtide_tiering::Error),
    /// Unexpected behaviour of the core that invalidates the figures.
    #[error("the core: {0}")]
    Odd(String),
    /// The chart could not be drawn.
    #[error("cannot draw {}: {why}", .path.display())]
    Chart {
        /// The output file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
}

impl ReplayError {
    /// Return the error for an invalid trace file.
    pub(super) fn trace(path: impl Into<PathBuf>, broken: Broken) -> ReplayError {
        ReplayError::Trace { path: path.into(), at: broken.at, why: broken.why }
    }
}

//! Why a trace could not be replayed.

use super::trace::{At, Broken};
use std::path::PathBuf;

/// What was tried, and why it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A file.
    #[error("cannot {tried} {}: {source}", .path.display())]
    File {
        /// What was tried.
        tried: &'static str,
        /// On which.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A trace is cut off, or contradicts itself.
    #[error("{}: {at}: {why}", .path.display())]
    Trace {
        /// Which.
        path: PathBuf,
        /// Where it breaks.
        at: At,
        /// How.
        why: String,
    },
    /// A setting that does not go with the trace.
    #[error("{what} is {value}: expected {expected}")]
    Setting {
        /// Which.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// The core.
    #[error("the core: {0}")]
    Core(#[from] kvtide_tiering::Error),
    /// The core did something that makes the figures meaningless.
    #[error("the core: {0}")]
    Odd(String),
    /// The chart.
    #[error("cannot draw {}: {why}", .path.display())]
    Chart {
        /// Where to.
        path: PathBuf,
        /// Why it failed.
        why: String,
    },
}

impl ReplayError {
    /// A trace's fault, in its file.
    pub(super) fn trace(path: impl Into<PathBuf>, broken: Broken) -> ReplayError {
        ReplayError::Trace { path: path.into(), at: broken.at, why: broken.why }
    }
}

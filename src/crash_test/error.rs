//! Why a crash test did not reach its end.

use std::path::PathBuf;

/// What was tried, and why it failed. A promise that was broken is no error: it is what a report says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CrashError {
    /// The private daemon did not start.
    #[error(transparent)]
    Daemon(#[from] crate::Error),
    /// A call of the client failed that must not.
    #[error("cannot {tried}: {source}")]
    Client {
        /// What was tried.
        tried: &'static str,
        /// Why it failed.
        source: kvtide_client::Error,
    },
    /// A file or directory of the run.
    #[error("cannot {tried} {}: {source}", path.display())]
    File {
        /// What was tried.
        tried: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Signals cannot be watched for.
    #[error("cannot watch for signals: {0}")]
    Signals(#[source] std::io::Error),
    /// A signal came.
    #[error("interrupted; its files were removed")]
    Interrupted,
    /// A phase in which nothing was reported stored.
    #[error("nothing was reported stored in the rounds of the phase {0:?}: nothing is proved")]
    Nothing(&'static str),
    /// A thread could not be started, or panicked.
    #[error("a thread that {0} did not do its work")]
    Thread(&'static str),
}

//! Errors of the crash test.

use std::path::PathBuf;

/// Why the crash test could not finish. A lost block or wrong byte is not an error, but a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CrashError {
    /// The private daemon did not start.
    #[error(transparent)]
    Daemon(#[from] kvtide_daemon::Error),
    /// A client call failed that must succeed.
    #[error("cannot {tried}: {source}")]
    Client {
        /// The action.
        tried: &'static str,
        /// The cause.
        source: kvtide_client::Error,
    },
    /// A file or directory of the run failed.
    #[error("cannot {tried} {}: {source}", path.display())]
    File {
        /// The action.
        tried: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Signal handlers could not be registered.
    #[error("cannot register signal handlers: {0}")]
    Signals(#[source] std::io::Error),
    /// The test received a signal.
    #[error("interrupted; files removed")]
    Interrupted,
    /// No block was reported stored in a phase.
    #[error("no block was reported stored in phase {0:?}, so the test has no result")]
    Nothing(&'static str),
    /// A thread could not be started, or panicked.
    #[error("a thread that {0} could not be started, or panicked")]
    Thread(&'static str),
}

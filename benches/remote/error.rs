//! Why the benchmark could not be run.

use kvtide_bench::bench::BenchError;

/// Why the benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A private daemon, an engine or a file.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// A private daemon.
    #[error(transparent)]
    Daemon(#[from] kvtide_daemon::Error),
    /// A relay failed.
    #[error(transparent)]
    Relay(#[from] kvtide_relay::error::Error),
    /// A remote store failed.
    #[error(transparent)]
    Store(#[from] kvtide_relay::store::StoreError),
    /// The server or the crate that is compared failed.
    #[error("cannot {tried}: {why}")]
    Peer {
        /// The action.
        tried: String,
        /// The cause.
        why: String,
    },
    /// An unexpected result that invalidates the figure.
    #[error("{0}")]
    Odd(String),
}

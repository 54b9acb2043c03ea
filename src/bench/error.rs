//! Why a bench could not be run.

/// What was tried, and why it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The private daemon.
    #[error(transparent)]
    Daemon(#[from] crate::Error),
    /// A call of the client.
    #[error("cannot {tried}: {source}")]
    Client {
        /// What was tried.
        tried: &'static str,
        /// Why it failed.
        source: kvtide_client::client::Error,
    },
    /// The core.
    #[error("the core: {0}")]
    Core(#[from] kvtide_tiering::Error),
    /// The system.
    #[error("cannot {tried}: {source}")]
    System {
        /// What was tried.
        tried: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Something came out that makes the figure meaningless.
    #[error("{0}")]
    Odd(String),
}

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
    /// A device.
    #[error(transparent)]
    Cuda(#[from] kvtide_client::cuda::Error),
    /// The core.
    #[error("the core: {0}")]
    Core(#[from] kvtide_tiering::Error),
    /// The simulated links around the core.
    #[error(transparent)]
    Machine(#[from] crate::replay::ReplayError),
    /// The system.
    #[error("cannot {tried}: {source}")]
    System {
        /// What was tried.
        tried: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A program that the bench compares with.
    #[error("cannot {tried}: {why}")]
    Peer {
        /// What was tried.
        tried: String,
        /// What it said.
        why: String,
    },
    /// A setting is out of its range.
    #[error("{what} is {value}: expected {expected}")]
    Setting {
        /// Which.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        expected: String,
    },
    /// A signal came.
    #[error("interrupted; its files were removed")]
    Interrupted,
    /// Something came out that makes the figure meaningless.
    #[error("{0}")]
    Odd(String),
}

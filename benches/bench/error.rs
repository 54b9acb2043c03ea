//! Errors of benchmarks.

/// Why a benchmark could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The private daemon failed.
    #[error(transparent)]
    Daemon(#[from] kvtide_daemon::Error),
    /// A disk.
    #[error(transparent)]
    Disk(#[from] kvtide_nvme::Error),
    /// A client call failed.
    #[error("cannot {tried}: {source}")]
    Client {
        /// The action.
        tried: &'static str,
        /// The cause.
        source: kvtide_client::client::Error,
    },
    /// A device failed.
    #[error(transparent)]
    Cuda(#[from] kvtide_client::cuda::Error),
    /// The core failed.
    #[error("the core: {0}")]
    Core(#[from] kvtide_tiering::Error),
    /// The simulated machine failed.
    #[error(transparent)]
    Machine(#[from] crate::replay::ReplayError),
    /// A system call failed.
    #[error("cannot {tried}: {source}")]
    System {
        /// The action.
        tried: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A program used for comparison failed.
    #[error("cannot {tried}: {why}")]
    Peer {
        /// The action.
        tried: String,
        /// The cause.
        why: String,
    },
    /// A setting is out of range.
    #[error("{what} is {value}: expected {expected}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The allowed range.
        expected: String,
    },
    /// A signal ended the benchmark.
    #[error("interrupted; files removed")]
    Interrupted,
    /// An unexpected result that invalidates the figure.
    #[error("{0}")]
    Odd(String),
}

//! Errors of the relay.

use crate::store::StoreError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why the relay cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The configuration is wrong.
    #[error("{}: {why}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The mistake, with its line.
        why: String,
    },
    /// The shared key cannot be used.
    #[error("shared key {}: {why}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The store cannot be used as configured.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The HTTP address cannot be bound.
    #[error("cannot listen on {address}: {source}; set another address ([http] listen)")]
    Http {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The socket for engines' adapters cannot be bound.
    #[error("cannot listen for adapters at {}: {source}; see socket in [domains.adapters]", path.display())]
    Socket {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: kvtide_wire::Error,
    },
    /// A token file cannot be used.
    #[error("token file {}: {why}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A resource of the system is missing.
    #[error("cannot {action}: {source}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

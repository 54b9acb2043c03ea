//! The daemon's error type: the action, its object, and the cause of the failure.

use crate::config::{ConfigError, Human};
use std::io;
use std::path::PathBuf;

/// An error that stops the daemon, or one of its operations.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory could not be used.
    #[error("cannot {action}: {}: {source}", .path.display())]
    File {
        /// The attempted action.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A token file is not safe to use, or has no valid token.
    #[error("cannot use the token file {}: {why}", .path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The defect.
        why: String,
    },
    /// Another daemon serves the socket.
    #[error("cannot serve {}: another daemon serves it ({evidence}); set another daemon.socket", .path.display())]
    SocketInUse {
        /// The socket.
        path: PathBuf,
        /// How it was detected.
        evidence: String,
    },
    /// The file at the socket's path is not a socket, so the daemon does not remove it.
    #[error("cannot serve {}: the file there is not a socket; remove it or set another daemon.socket", .path.display())]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// The HTTP address cannot be bound.
    #[error("cannot serve HTTP on {address}: {source}: {hint}")]
    Http {
        /// The address.
        address: std::net::SocketAddr,
        /// The remedy.
        hint: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The machine has less memory than the host tier needs.
    #[error(
        "cannot allocate {} for the host tier: {} are available; reduce tiers.host.capacity", Human(*.wanted), Human(*.available)
    )]
    Memory {
        /// Bytes needed.
        wanted: u64,
        /// Bytes available.
        available: u64,
    },
    /// An environment variable is set to nothing, as by a chart without a value.
    #[error("the environment variable {name} is empty; give it a value, or unset it")]
    EmptyVariable {
        /// Its name.
        name: &'static str,
    },
    /// No daemon answers at any of the addresses.
    #[error(
        "no daemon answers ({tried}). Check that kvtided runs; select it with --socket, --dir or --http, or with KVTIDE_SOCKET"
    )]
    NoDaemon {
        /// The addresses and why each failed.
        tried: String,
    },
    /// This user may not connect to the daemon's socket, and no daemon answers elsewhere.
    #[error(
        "permission denied on the daemon's socket {socket}: run this with sudo, as the daemon's user, or as a member of the socket's \
         group (daemon.socket_mode); or ask over HTTP with --http ADDRESS ({tried})"
    )]
    Denied {
        /// Path of the socket.
        socket: String,
        /// The addresses and why each failed.
        tried: String,
    },
    /// Another server answers at the HTTP address.
    #[error("{address} does not answer like a compatible kvtide daemon: {what}")]
    NotADaemon {
        /// The address.
        address: String,
        /// The answer.
        what: String,
    },
    /// The daemon refused a request.
    #[error("{why}")]
    Refused {
        /// The address.
        address: String,
        /// HTTP status.
        code: String,
        /// Why, in the daemon's words.
        why: String,
    },
    /// A system call of the shared layer failed.
    #[error("cannot {action}: {source}")]
    Wire {
        /// The attempted action.
        action: &'static str,
        /// The cause.
        source: kvtide_wire::error::Error,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// The attempted action and its object.
        action: String,
        /// The cause.
        source: io::Error,
    },
    /// A disk of the NVMe tier cannot be used.
    #[error(transparent)]
    Disk(#[from] kvtide_nvme::DiskError),
    /// A private daemon did not become ready.
    #[error("the private daemon {what}{}", if .stderr.is_empty() { String::new() } else { format!("; it said:\n{}", .stderr) })]
    PrivateDaemon {
        /// The observed failure.
        what: String,
        /// The last lines of its stderr.
        stderr: String,
    },
}

impl Error {
    /// Return true if retrying fails the same way until the configuration, or a file that it names, changes.
    pub fn is_settled(&self) -> bool {
        use kvtide_nvme::DiskError::{Demanded, Keys, Kind, Layout, Mode, Owner, Setting, Superblock};
        match self {
            Error::Config(_) | Error::Token { .. } => true,
            Error::Disk(disk) => matches!(
                disk,
                Owner { .. }
                    | Mode { .. }
                    | Kind { .. }
                    | Superblock { .. }
                    | Layout { .. }
                    | Demanded { .. }
                    | Setting { .. }
                    | Keys { .. }
            ),
            _ => false,
        }
    }

    /// Create an error for a failed system call; `action` contains its object.
    pub fn system(action: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::System { action: action.into(), source: source.into() }
    }
}

impl From<kvtide_nvme::Error> for Error {
    fn from(error: kvtide_nvme::Error) -> Error {
        match error {
            kvtide_nvme::Error::Disk(disk) => Error::Disk(disk),
            kvtide_nvme::Error::Wire { action, source } => Error::Wire { action, source },
            kvtide_nvme::Error::System { action, source } => Error::system(action, source),
        }
    }
}

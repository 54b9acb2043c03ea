//! The daemon's error type: what was tried, on what, and why it failed.

use crate::config::ConfigError;
use std::io;
use std::path::PathBuf;

/// Everything that stops the daemon, or one thing that it tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory could not be used.
    #[error("cannot {action}: {}: {source}", .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A token file is not safe to use, or holds no token.
    #[error("cannot use the token file {}: {why}", .path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another daemon serves the socket.
    #[error("cannot serve {}: another daemon already does ({evidence}); give this one another socket", .path.display())]
    SocketInUse {
        /// The socket.
        path: PathBuf,
        /// How we know.
        evidence: String,
    },
    /// What stands at the socket's path is no socket, so it is not ours to remove.
    #[error("cannot serve {}: a file that is no socket stands there; remove it or give this daemon another socket", .path.display())]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// The address for HTTP cannot be had.
    #[error("cannot serve HTTP on {address}: {source}: {hint}")]
    Http {
        /// The address.
        address: std::net::SocketAddr,
        /// What to do about it.
        hint: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The machine has less memory than the host tier shall hold.
    #[error(
        "cannot take {wanted} bytes for the host tier: {available} are available on this machine; make tiers.host.capacity smaller"
    )]
    Memory {
        /// Bytes that it shall hold.
        wanted: u64,
        /// Bytes that there are.
        available: u64,
    },
    /// Nobody answers where a daemon should serve HTTP.
    #[error(
        "no daemon answers on http://{address}: {source}: is kvtided running, with its [http] listen there? --http ADDR asks \
         elsewhere"
    )]
    NoDaemon {
        /// Where it was asked.
        address: String,
        /// What happened.
        source: io::Error,
    },
    /// Something else answers there.
    #[error("what answers on http://{address} is no daemon that this kvtide knows: it said {what}")]
    NotADaemon {
        /// Where it was asked.
        address: String,
        /// What came.
        what: String,
    },
    /// A system call of the shared layer failed.
    #[error("cannot {action}: {source}")]
    Wire {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: kvtide_wire::error::Error,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried, on what.
        action: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A disk of the NVMe tier cannot be used.
    #[error(transparent)]
    Disk(#[from] crate::io::DiskError),
    /// A private daemon did not become ready.
    #[error("the private daemon {what}{}", if .stderr.is_empty() { String::new() } else { format!("; it said:\n{}", .stderr) })]
    PrivateDaemon {
        /// What happened instead.
        what: String,
        /// The end of its stderr.
        stderr: String,
    },
}

impl Error {
    /// Whether another try ends the same way until somebody changes the configuration, or what it names.
    pub(crate) fn is_settled(&self) -> bool {
        use crate::io::DiskError::{Demanded, Keys, Kind, Layout, Mode, Owner, Setting, Superblock};
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

    /// A failed system call: `action` says what was tried and on what.
    pub(crate) fn system(action: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::System { action: action.into(), source: source.into() }
    }
}

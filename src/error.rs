//! The daemon's error type: what was tried, on what, and why it failed.

use crate::config::ByteSize;
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
    /// The configuration does not parse, or has a key that does not exist.
    #[error("{file}:{line}:{column}: {message}\n    {snippet}")]
    Syntax {
        /// Name of the file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// The line's text.
        snippet: String,
        /// What is wrong and what is allowed.
        message: String,
    },
    /// A configured value is out of its range.
    #[error("{file}: {value}: expected {expected}")]
    Value {
        /// Name of the file.
        file: String,
        /// Key, value and place.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// Two configured values contradict each other.
    #[error("{file}: {a} contradicts {b}: {rule}")]
    Contradiction {
        /// Name of the file.
        file: String,
        /// Key, value and place of one side.
        a: String,
        /// Key, value and place of the other.
        b: String,
        /// What must hold.
        rule: String,
    },
    /// The host tier is larger than what can be had.
    #[error("tiers.host.capacity = {capacity} exceeds {source_of_limit}, which is {limit}")]
    HostTier {
        /// What is configured.
        capacity: ByteSize,
        /// What can be had.
        limit: ByteSize,
        /// Who says so.
        source_of_limit: String,
    },
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
    /// A failed system call: `action` says what was tried and on what.
    pub(crate) fn system(action: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::System { action: action.into(), source: source.into() }
    }
}

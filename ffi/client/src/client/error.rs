//! What a call of the client may end with: what was tried, on what, and why it failed.

use kvtide_wire::status::Status;
use std::path::PathBuf;

/// Result of a client call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed. [`Error::status`] is the code that the C ABI returns for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call on a session, sequence, pin or lane did not succeed. Costs no allocation.
    #[error("{doing} {on}: {}", describe(*status))]
    Call {
        /// What was tried.
        doing: &'static str,
        /// On which sequence, lane, channel, plane or ticket.
        on: u64,
        /// Why it failed.
        status: Status,
    },
    /// The daemon refused the attach.
    #[error("attach to {}: {} ({text})", socket.display(), describe(*status))]
    Refused {
        /// Where the daemon listens.
        socket: PathBuf,
        /// Its answer.
        status: Status,
        /// Its reason, in words.
        text: String,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    System {
        /// What was tried.
        doing: String,
        /// The status that fits: [`Status::System`], or [`Status::Daemon`] where the peer is not there.
        status: Status,
        /// What the system said.
        source: std::io::Error,
    },
    /// The options contradict each other, a limit, or the geometry.
    #[error("option {option}: {why}")]
    Options {
        /// Name of the option.
        option: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

/// A status in words.
fn describe(status: Status) -> &'static str {
    status.message().to_str().unwrap_or("unknown status")
}

impl Error {
    /// A failed call.
    #[must_use]
    pub const fn call(doing: &'static str, on: u64, status: Status) -> Error {
        Error::Call { doing, on, status }
    }

    /// The status code that stands for this error.
    #[must_use]
    pub const fn status(&self) -> Status {
        match self {
            Error::Call { status, .. } | Error::Refused { status, .. } | Error::System { status, .. } => *status,
            Error::Options { .. } => Status::Invalid,
        }
    }
}

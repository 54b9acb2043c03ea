//! Errors of client calls: the action, its object, and the cause of the failure.

use kvtide_wire::status::Status;
use std::path::PathBuf;

/// Result of a client call.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a client call. [`Error::status`] is the code that the C ABI returns for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call on a session, sequence, pin or lane failed. Construction does not allocate.
    #[error("{doing} {on}: {}", describe(*status))]
    Call {
        /// The action.
        doing: &'static str,
        /// The sequence, lane, channel, plane or ticket.
        on: u64,
        /// The reason.
        status: Status,
    },
    /// The daemon refused the attach.
    #[error("attach to {}: {} ({text})", socket.display(), describe(*status))]
    Refused {
        /// Path of the daemon's socket.
        socket: PathBuf,
        /// The daemon's status.
        status: Status,
        /// The daemon's reason as text.
        text: String,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    System {
        /// The action.
        doing: String,
        /// The matching status: [`Status::System`], or [`Status::Daemon`] if the daemon is not reachable.
        status: Status,
        /// The system's error.
        source: std::io::Error,
    },
    /// An option contradicts another option, a limit, or the geometry.
    #[error("option {option}: {why}")]
    Options {
        /// Name of the option.
        option: &'static str,
        /// The reason.
        why: String,
    },
}

/// Return the text of a status.
fn describe(status: Status) -> &'static str {
    status.message().to_str().unwrap_or("unknown status")
}

impl Error {
    /// Create the error of a failed call.
    #[must_use]
    pub const fn call(doing: &'static str, on: u64, status: Status) -> Error {
        Error::Call { doing, on, status }
    }

    /// Return the status code of this error.
    #[must_use]
    pub const fn status(&self) -> Status {
        match self {
            Error::Call { status, .. } | Error::Refused { status, .. } | Error::System { status, .. } => *status,
            Error::Options { .. } => Status::Invalid,
        }
    }
}

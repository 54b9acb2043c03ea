//! Errors of client calls: the action, its object, and the cause of the failure.
//!
//! A caller's mistake has a reason of its own ([`Refusal`]): the text of its status alone would not say what to change.

use kvtide_wire::status::Status;
use std::path::PathBuf;

/// Result of a client call.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a client call. [`Error::status`] is the code that the C ABI returns for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call on a session, sequence, pin or lane failed. Without `why` construction does not allocate.
    #[error("{doing} {on}: {}", why.as_deref().unwrap_or(describe(*status)))]
    Call {
        /// The action.
        doing: &'static str,
        /// The sequence, lane, channel, plane or ticket.
        on: u64,
        /// The kind of failure.
        status: Status,
        /// The reason, if more is known than the status.
        why: Option<Box<str>>,
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

/// Why a call was refused. Errors without a reason of their own are converted from their status.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub status: Status,
    why: Option<Box<str>>,
}

impl Refusal {
    /// Create a refusal with its reason: what is wrong, and what to do.
    pub fn because(status: Status, why: impl Into<Box<str>>) -> Refusal {
        Refusal { status, why: Some(why.into()) }
    }

    /// Create a refusal with a reason if there is one.
    pub fn new(status: Status, why: Option<String>) -> Refusal {
        Refusal { status, why: why.map(Into::into) }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        Refusal { status, why: None }
    }
}

/// Return the text of a status.
fn describe(status: Status) -> &'static str {
    status.message().to_str().unwrap_or("unknown status")
}

impl Error {
    /// Create the error of a failed call.
    #[must_use]
    pub const fn call(doing: &'static str, on: u64, status: Status) -> Error {
        Error::Call { doing, on, status, why: None }
    }

    /// Create the error of a refused call.
    pub(crate) fn refused(doing: &'static str, on: u64, refusal: impl Into<Refusal>) -> Error {
        let Refusal { status, why } = refusal.into();
        Error::Call { doing, on, status, why }
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

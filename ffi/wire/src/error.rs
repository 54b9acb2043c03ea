//! The error type of this crate: action, object and cause.

use crate::status::Status;
use alloc::string::String;

/// A ring index from the peer that no correct peer could have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ring {what}: the peer's index {theirs} is not within {capacity} of ours, {ours}")]
pub struct IndexError {
    /// Name of the index.
    pub what: &'static str,
    /// Our own free-running index.
    pub ours: u32,
    /// The peer's index.
    pub theirs: u32,
    /// Entries of the ring.
    pub capacity: u32,
}

/// Failures between the two processes below the level of requests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size or index is out of bounds.
    #[error("{what} is {value}, allowed are {min} to {max}")]
    Bound {
        /// Name of the value.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
    },
    /// A ring size must be a power of two, so that free-running indices wrap onto it.
    #[error("{what} is {value}, which is not a power of two")]
    PowerOfTwo {
        /// Name of the size.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The peer wrote an impossible ring index; its session ends.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// A message of the handshake is malformed.
    #[error("{message}: {field} is {found}, expected {expected}")]
    Message {
        /// Name of the message.
        message: &'static str,
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        found: String,
        /// Allowed values.
        expected: String,
    },
    /// The two sides have no protocol version in common.
    #[error(
        "the peer speaks protocol version {}, this side {}; install a newer kvtide on {}",
        span(theirs), span(ours), if theirs[0] > ours[1] { "this side" } else { "the peer's side" }
    )]
    Version {
        /// Oldest and newest version of this side.
        ours: [u32; 2],
        /// Oldest and newest version of the peer, as far as it told.
        theirs: [u32; 2],
    },
    /// The daemon refused the handshake.
    #[error("the daemon refused the session: {text} ({})", .status.message().to_string_lossy())]
    Refused {
        /// Reason as a code.
        status: Status,
        /// Reason as text.
        text: String,
    },
    /// The other side closed the socket.
    #[error("{tried}: the peer closed the connection")]
    Closed {
        /// Action that failed.
        tried: &'static str,
    },
    /// Nothing arrived before the timeout.
    #[error("{tried}: nothing within {timeout_ms} ms")]
    TimedOut {
        /// Action that failed.
        tried: &'static str,
        /// Timeout in milliseconds.
        timeout_ms: u64,
    },
    /// A system call failed.
    #[error("{tried} ({on}): {reason} (errno {errno})")]
    Os {
        /// Action that failed.
        tried: &'static str,
        /// Object of the action: a path, a name, a size.
        on: String,
        /// `errno`.
        errno: i32,
        /// Text for `errno`.
        reason: String,
    },
}

/// Return a range of versions as text.
fn span([oldest, newest]: &[u32; 2]) -> String {
    if oldest == newest { alloc::format!("{oldest}") } else { alloc::format!("{oldest} to {newest}") }
}

impl Error {
    /// Return the status code for this error in a ring entry or in C.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Error::Bound { .. } | Error::PowerOfTwo { .. } => Status::Range,
            Error::Index(_) => Status::Protocol,
            Error::Message { .. } => Status::Protocol,
            Error::Version { .. } => Status::Version,
            Error::Refused { status, .. } => *status,
            Error::Closed { .. } => Status::Daemon,
            Error::TimedOut { .. } => Status::TimedOut,
            Error::Os { .. } => Status::System,
        }
    }
}

//! The one error type of this crate: what was tried, on what, why it failed.

use crate::status::Status;
use alloc::string::String;

/// An index that the peer wrote and that no correct peer could have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ring {what}: the peer's index {theirs} is not within {capacity} of ours, {ours}")]
pub struct IndexError {
    /// Which index.
    pub what: &'static str,
    /// Our own free-running index.
    pub ours: u32,
    /// What the peer wrote.
    pub theirs: u32,
    /// Entries of the ring.
    pub capacity: u32,
}

/// Everything that can go wrong between the two processes below the level of requests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size or index is out of its bounds.
    #[error("{what} is {value}, allowed are {min} to {max}")]
    Bound {
        /// Which one.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Least allowed.
        min: u64,
        /// Most allowed.
        max: u64,
    },
    /// A ring size must be a power of two, so that free-running indices wrap onto it.
    #[error("{what} is {value}, which is not a power of two")]
    PowerOfTwo {
        /// Which one.
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
        /// Which message.
        message: &'static str,
        /// Which field of it.
        field: &'static str,
        /// What stands there.
        found: String,
        /// What may stand there.
        expected: String,
    },
    /// The two sides speak different protocol versions.
    #[error("the peer speaks protocol version {theirs}, this side speaks {ours}")]
    Version {
        /// Ours.
        ours: u32,
        /// The peer's.
        theirs: u32,
    },
    /// The daemon answered the handshake with a refusal.
    #[error("the daemon refused the session: {text} ({})", .status.message().to_string_lossy())]
    Refused {
        /// Why, as a code.
        status: Status,
        /// Why, for a human.
        text: String,
    },
    /// The other side closed the socket.
    #[error("{tried}: the peer closed the connection")]
    Closed {
        /// What was tried.
        tried: &'static str,
    },
    /// Nothing came within the time allowed.
    #[error("{tried}: nothing within {timeout_ms} ms")]
    TimedOut {
        /// What was tried.
        tried: &'static str,
        /// How long.
        timeout_ms: u64,
    },
    /// A system call failed.
    #[error("{tried} ({on}): {reason} (errno {errno})")]
    Os {
        /// What was tried.
        tried: &'static str,
        /// On what: a path, a name, a size.
        on: String,
        /// `errno`.
        errno: i32,
        /// `errno` in words.
        reason: String,
    },
}

impl Error {
    /// The status code that says the same in a ring entry or to C.
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

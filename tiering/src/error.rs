//! Errors of the core. A mistake of an engine in a request is not an error here: the request completes with a status.

use crate::api::SessionId;

/// Reason why a call on the core failed. After an error, `handle` has changed nothing unless the variant says otherwise.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The configuration contradicts itself or exceeds the range of ids.
    #[error("space configuration: {what} (is {value})")]
    Config {
        /// The violated rule.
        what: &'static str,
        /// The invalid value.
        value: u64,
    },
    /// The planes of the space are not possible.
    #[error("space configuration: {0}")]
    Geometry(#[from] kvtide_types::GeometryError),
    /// An attach does not fit the space.
    #[error("attach of session {session}: {why}")]
    Attach {
        /// The requested session index.
        session: SessionId,
        /// The reason.
        why: &'static str,
    },
    /// An event names a session that is not attached, or not in the required state.
    #[error("session {session} is not attached")]
    NoSession {
        /// The session index.
        session: SessionId,
    },
    /// The agent violated the protocol; the daemon ends the session.
    #[error("session {session} violated the protocol: {what} (job {job})")]
    Agent {
        /// The session to end.
        session: SessionId,
        /// Id of the job.
        job: u32,
        /// The violation.
        what: &'static str,
    },
    /// The session has more requests in flight than its limit. Either the daemon did not check, or the engine violated the
    /// protocol. The daemon ends the session.
    #[error("session {session} has more than {max} requests in flight")]
    Overrun {
        /// The session to end.
        session: SessionId,
        /// The limit.
        max: u32,
    },
    /// A grant or refusal of host memory that was not requested, or a grant with an id in use.
    #[error("host slab {slab}: {why}")]
    Slab {
        /// Id of the grant.
        slab: u32,
        /// The reason.
        why: &'static str,
    },
    /// Completion of a transfer between host and NVMe that is not in flight.
    #[error("transfer {id} is not in flight")]
    Transfer {
        /// Id of the transfer.
        id: u32,
    },
    /// Completion of a log request that is not in flight.
    #[error("log request {id} is not in flight")]
    LogRequest {
        /// Id of the log request.
        id: u32,
    },
    /// A flight recording cannot be decoded.
    #[error("flight recording: {what} at byte {at}")]
    Recording {
        /// The reason.
        what: &'static str,
        /// Byte offset.
        at: usize,
    },
}

/// Return an error with a message unless a condition holds; for checks of consistency.
macro_rules! ensure {
    ($cond:expr, $($what:tt)*) => {
        if !$cond {
            return Err(format!($($what)*));
        }
    };
}
pub(crate) use ensure;

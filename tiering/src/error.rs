//! What the core refuses outright. Everything that an engine may get wrong in a request becomes a completion instead.

use crate::api::SessionId;

/// Why a call on the core was refused. `handle` changes nothing when it returns one, but for those that say otherwise.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The configuration contradicts itself or exceeds what ids can count.
    #[error("space configuration: {what} (is {value})")]
    Config {
        /// Which rule is broken.
        what: &'static str,
        /// The offending value.
        value: u64,
    },
    /// An attach that does not fit the space.
    #[error("attach of session {session}: {why}")]
    Attach {
        /// The slot that was asked for.
        session: SessionId,
        /// What is wrong.
        why: &'static str,
    },
    /// An event for a session slot that holds no session of that state.
    #[error("session {session} is not attached")]
    NoSession {
        /// The slot.
        session: SessionId,
    },
    /// The agent broke the protocol: the shell ends that session.
    #[error("session {session} broke the protocol: {what} (job {job})")]
    Agent {
        /// The session to end.
        session: SessionId,
        /// Its job id.
        job: u32,
        /// What it did.
        what: &'static str,
    },
    /// More requests in flight than the session may have: the shell let through what it should have refused, or the engine
    /// broke the protocol. The shell ends that session.
    #[error("session {session} has more than {max} requests in flight")]
    Overrun {
        /// The session to end.
        session: SessionId,
        /// Its bound.
        max: u32,
    },
    /// A grant or refusal of host memory that nobody asked for or that reuses a live id.
    #[error("host slab {slab}: {why}")]
    Slab {
        /// Id of the grant.
        slab: u32,
        /// What is wrong.
        why: &'static str,
    },
    /// A transfer between host and NVMe ended that is not in flight.
    #[error("transfer {id} is not in flight")]
    Transfer {
        /// Its id.
        id: u32,
    },
    /// A note to an index log ended that is not in flight.
    #[error("note {id} is not in flight")]
    Note {
        /// Its id.
        id: u32,
    },
    /// Bytes of a flight recording that do not decode.
    #[error("flight recording: {what} at byte {at}")]
    Recording {
        /// What is wrong.
        what: &'static str,
        /// Where.
        at: usize,
    },
}

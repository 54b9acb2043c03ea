//! What ends a session: the engine's own end, ours, or what no correct engine does.

use crate::translate::JobDoneError;
use kvtide_wire::error::{Error as WireError, IndexError};
use kvtide_wire::status::Status;

/// A breach of the protocol; the text goes to the log and to the engine.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Violation {
    /// Ring indices that cannot be.
    #[error(transparent)]
    Ring(#[from] IndexError),
    /// A tag without a place.
    #[error("channel {channel}: tag {tag} is not below the channel's depth, {depth}")]
    Tag { channel: u16, tag: u16, depth: usize },
    /// A tag used again before its answer.
    #[error("channel {channel}: tag {tag} was used again before its completion")]
    TagInFlight { channel: u16, tag: u16 },
    /// Answers were not read, and their tags used again.
    #[error("channel {channel}: tags were used again while their completions were not yet taken out of the ring")]
    AnswersUnread { channel: u16 },
    /// A job that does not exist ended.
    #[error("a job that is not in flight was reported as ended: {id}")]
    NoSuchJob { id: u32 },
    /// A job ended in a way that no job can.
    #[error(transparent)]
    JobDone(#[from] JobDoneError),
    /// Jobs were not read though they were reported as ended.
    #[error("jobs were reported as ended that were not yet taken out of the ring")]
    JobsUnread,
    /// The engine spoke after its hello.
    #[error("a message that is no goodbye came over the attach socket after the hello")]
    Spoke,
    /// The shared layer failed on what the engine did.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// The core says so.
    #[error("{0}")]
    Core(kvtide_tiering::Error),
}

/// Why a session ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    /// The engine has left: nothing of it touches host memory any more.
    Left,
    /// The engine closed its socket, or died and nothing else holds it.
    Closed,
    /// The engine's process has exited.
    Exited,
    /// The engine broke the protocol.
    Violation(Violation),
    /// Copies that its agent did not end in time hold more host memory than one session's may.
    Late {
        /// Bytes that they hold.
        bytes: u64,
        /// Bytes that they may hold.
        bytes_max: u64,
    },
    /// The daemon ends.
    Shutdown,
    /// A failure on our side that leaves the session without what it needs.
    System(String),
}

impl End {
    /// What the engine is told, if it can still be told anything.
    pub fn farewell(&self) -> Option<(Status, String)> {
        match self {
            End::Left | End::Closed | End::Exited => None,
            End::Violation(violation) => Some((Status::Protocol, violation.to_string())),
            End::Late { .. } => Some((Status::Limit, self.to_string())),
            End::Shutdown => Some((Status::Daemon, "the daemon is shutting down".into())),
            End::System(what) => Some((Status::System, what.clone())),
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Left => f.write_str("it has left"),
            End::Closed => f.write_str("its socket was closed"),
            End::Exited => f.write_str("its process has exited"),
            End::Violation(violation) => write!(f, "protocol violation: {violation}"),
            End::Late { bytes, bytes_max } => write!(
                f,
                "its agent did not end copies in time: they hold {bytes} bytes of host memory, one session's may hold {bytes_max}; \
                 find out why the engine's copy thread stands still, then attach again"
            ),
            End::Shutdown => f.write_str("the daemon is shutting down"),
            End::System(what) => f.write_str(what),
        }
    }
}

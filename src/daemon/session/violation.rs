//! Reasons for the end of a session: by the engine, by the daemon, or by a protocol violation.

use kvtide_wire::error::{Error as WireError, IndexError};
use kvtide_wire::job::JobDoneError;
use kvtide_wire::status::Status;

/// A protocol violation; the text goes to the log and to the engine.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Violation {
    /// Impossible ring indices.
    #[error(transparent)]
    Ring(#[from] IndexError),
    /// A tag outside the channel's depth.
    #[error("channel {channel}: tag {tag} is not below the channel's depth, {depth}")]
    Tag { channel: u16, tag: u16, depth: usize },
    /// A tag reused before its answer.
    #[error("channel {channel}: tag {tag} was reused before its completion")]
    TagInFlight { channel: u16, tag: u16 },
    /// Tags reused before their answers were read.
    #[error("channel {channel}: tags were reused before their completions were read from the ring")]
    AnswersUnread { channel: u16 },
    /// An unknown job was reported as ended.
    #[error("job {id} was reported as ended but is not in flight")]
    NoSuchJob { id: u32 },
    /// An impossible result of a job.
    #[error(transparent)]
    JobDone(#[from] JobDoneError),
    /// Jobs were reported as ended but not read.
    #[error("jobs were reported as ended before they were read from the ring")]
    JobsUnread,
    /// An unexpected message of the engine after its Hello.
    #[error("unexpected message on the attach socket: only detach is allowed after the handshake")]
    Spoke,
    /// The shared layer rejected data of the engine.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// The core rejected a request.
    #[error("{0}")]
    Core(kvtide_tiering::Error),
}

/// Reason why a session ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    /// The engine has detached: it does not access host memory any more.
    Left,
    /// The engine closed its socket, or died and no other process holds the socket.
    Closed,
    /// The engine's process has exited.
    Exited,
    /// The engine broke the protocol.
    Violation(Violation),
    /// Copies that its agent did not finish in time hold more host memory than allowed for a session.
    Late {
        /// Bytes held.
        bytes: u64,
        /// Bytes allowed.
        bytes_max: u64,
    },
    /// The daemon shuts down.
    Shutdown,
    /// The space of a relay closes: no engine uses it.
    SpaceCloses,
    /// A failure in the daemon that leaves the session without a needed resource.
    System(String),
}

impl End {
    /// Return the message for the engine, if it can still receive one.
    pub fn disconnect_message(&self) -> Option<(Status, String)> {
        match self {
            End::Left | End::Closed | End::Exited => None,
            End::Violation(violation) => Some((Status::Protocol, violation.to_string())),
            End::Late { .. } => Some((Status::Limit, self.to_string())),
            End::Shutdown => Some((Status::Daemon, "the daemon is shutting down".into())),
            End::SpaceCloses => Some((Status::NotFound, self.to_string())),
            End::System(what) => Some((Status::System, what.clone())),
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Left => f.write_str("detached"),
            End::SpaceCloses => f.write_str("no engine uses the space any more; it closes"),
            End::Closed => f.write_str("the socket was closed"),
            End::Exited => f.write_str("the process has exited"),
            End::Violation(violation) => write!(f, "protocol violation: {violation}"),
            End::Late { bytes, bytes_max } => write!(
                f,
                "copies that did not finish in time hold {bytes} bytes of host memory, at most {bytes_max} are allowed per \
                 session; check why the engine's copy thread is stuck, then attach again"
            ),
            End::Shutdown => f.write_str("the daemon is shutting down"),
            End::System(what) => f.write_str(what),
        }
    }
}

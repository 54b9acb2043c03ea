//! One peer that has connected and not yet said hello.

use super::policy::Refusal;
use crate::session::{Fate, Registry};
use kvtide_wire::error::Error as WireError;
use kvtide_wire::hello::{self, Hello, MESSAGE_MAX, Welcome};
use kvtide_wire::os::socket::{Peer, Received, Socket};
use kvtide_wire::status::Status;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// One peer in handshake.
#[derive(Debug)]
pub(crate) struct Handshake {
    socket: Socket,
    peer: Peer,
    pidfd: OwnedFd,
    deadline: Instant,
}

/// What a peer did.
#[derive(Debug)]
pub(crate) enum Progress {
    /// Nothing yet.
    Silent,
    /// It is gone.
    Over,
    /// It said something that is no hello.
    Nonsense(Refusal),
    /// It said a well-formed hello.
    Hello(Box<Hello>),
}

impl Handshake {
    /// Start a handshake with an identified peer (`Socket::peer`).
    pub fn new(socket: Socket, peer: Peer, now: Instant, timeout: Duration) -> Result<Handshake, WireError> {
        Ok(Handshake { peer, pidfd: socket.peer_pidfd()?, socket, deadline: now + timeout })
    }

    /// Who it is.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// When it will be dropped.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Looks at what it has said.
    pub fn progress(&self) -> Progress {
        // It may hold a token.
        let mut buffer = Zeroizing::new(vec![0; MESSAGE_MAX + 1]);
        match self.socket.receive(&mut buffer, 0) {
            Ok(Received::Empty) => Progress::Silent,
            Ok(Received::Closed) => Progress::Over,
            Ok(Received::Message(len, _)) => match Hello::decode(&buffer[..len]) {
                Ok(hello) => Progress::Hello(Box::new(hello)),
                Err(error) => Progress::Nonsense(refusal_of(&error)),
            },
            Err(error) => {
                let text = format!("the hello was not received: {error}");
                Progress::Nonsense(Refusal { status: Status::Protocol, text })
            }
        }
    }

    /// Tells it why not. A peer that cannot even be told is gone.
    pub fn refuse(&self, registry: &Registry, refusal: &Refusal) {
        refuse(registry, &self.socket, self.peer, refusal);
    }

    /// Its descriptors, once it is admitted.
    pub fn into_parts(self) -> (Socket, Peer, OwnedFd) {
        (self.socket, self.peer, self.pidfd)
    }
}

/// Sends a refusal, logs and counts it.
pub(crate) fn refuse(registry: &Registry, socket: &Socket, peer: Peer, refusal: &Refusal) {
    registry.note(Fate::Refused);
    tracing::warn!("uid {} (pid {}) is refused: {}: {}", peer.uid, peer.pid, status_name(refusal.status), refusal.text);
    let message = Welcome::refusal(refusal.status, &refusal.text).encode();
    if let Err(error) = socket.send(&message, &[]) {
        tracing::debug!("pid {} did not hear why it was refused: {error}", peer.pid);
    }
}

/// A status in the words of its enumeration, for logs.
fn status_name(status: Status) -> String {
    format!("{status:?}")
}

fn refusal_of(error: &WireError) -> Refusal {
    match error {
        WireError::Version { ours, theirs } => Refusal {
            status: Status::Version,
            text: format!("the client speaks protocol version {theirs}, this daemon speaks {ours}"),
        },
        _ => Refusal {
            status: Status::Protocol,
            text: format!("the hello is malformed: {error} (version {})", hello::version()),
        },
    }
}

impl AsFd for Handshake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

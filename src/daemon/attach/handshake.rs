//! A connection before its Hello message.

use super::policy::Refusal;
use crate::session::{Outcome, Registry};
use kvtide_wire::error::Error as WireError;
use kvtide_wire::hello::{First, MESSAGE_MAX, Welcome};
use kvtide_wire::os::socket::{Peer, Received, Socket};
use kvtide_wire::status::Status;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// A connection in handshake.
#[derive(Debug)]
pub(crate) struct Handshake {
    socket: Socket,
    peer: Peer,
    pidfd: OwnedFd,
    deadline: Instant,
}

/// Result of one read from the connection.
#[derive(Debug)]
pub(crate) enum Progress {
    /// No message has arrived.
    Silent,
    /// The peer closed the connection.
    Over,
    /// A message arrived that is not a valid first message.
    Nonsense(Refusal),
    /// A valid first message arrived.
    First(Box<First>),
}

impl Handshake {
    /// Start a handshake with an identified peer (`Socket::peer`).
    pub fn new(socket: Socket, peer: Peer, now: Instant, timeout: Duration) -> Result<Handshake, WireError> {
        Ok(Handshake { peer, pidfd: socket.peer_pidfd()?, socket, deadline: now + timeout })
    }

    /// Return the peer's process and user ids.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Return the time at which the connection is dropped.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Read the next message without waiting.
    pub fn progress(&self) -> Progress {
        // The message may contain a token.
        let mut buffer = Zeroizing::new(vec![0; MESSAGE_MAX + 1]);
        match self.socket.receive(&mut buffer, 0) {
            Ok(Received::Empty) => Progress::Silent,
            Ok(Received::Closed) => Progress::Over,
            Ok(Received::Message(len, _)) => match First::decode(&buffer[..len]) {
                Ok(first) => Progress::First(Box::new(first)),
                Err(error) => Progress::Nonsense(refusal_of(&error)),
            },
            Err(error) => {
                let text = format!("cannot receive the handshake message: {error}");
                Progress::Nonsense(Refusal { status: Status::Protocol, text })
            }
        }
    }

    /// Send a refusal. If the send fails, the peer has disconnected.
    pub fn refuse(&self, registry: &Registry, refusal: &Refusal) {
        refuse(registry, &self.socket, self.peer, refusal);
    }

    /// Return the descriptors of an admitted connection.
    pub fn into_parts(self) -> (Socket, Peer, OwnedFd) {
        (self.socket, self.peer, self.pidfd)
    }
}

/// Send, log and count a refusal.
pub(crate) fn refuse(registry: &Registry, socket: &Socket, peer: Peer, refusal: &Refusal) {
    registry.count_outcome(Outcome::Refused);
    tracing::warn!(
        "uid {} (pid {}): attach refused: {}: {}",
        peer.uid,
        peer.pid,
        status_name(refusal.status),
        refusal.text
    );
    let message = Welcome::refusal(refusal.status, &refusal.text).encode();
    if let Err(error) = socket.send(&message, &[]) {
        tracing::debug!("cannot send the refusal to pid {}: {error}", peer.pid);
    }
}

/// Return the name of a status, for logs.
fn status_name(status: Status) -> String {
    format!("{status:?}")
}

fn refusal_of(error: &WireError) -> Refusal {
    match error {
        WireError::Version { .. } => Refusal { status: Status::Version, text: error.to_string() },
        _ => Refusal { status: Status::Protocol, text: format!("malformed handshake message: {error}") },
    }
}

impl AsFd for Handshake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

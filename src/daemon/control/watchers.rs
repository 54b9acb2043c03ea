//! Relays that watch which spaces are open. The control thread sends changes over their sockets and never waits: a relay that reads too slowly is
//! disconnected, and connects again.

use kvtide_wire::hello::{SpaceClosed, SpaceOpened, Watching};
use kvtide_wire::os::socket::{Received, Socket};
use std::os::fd::{AsFd, BorrowedFd};

/// Maximum relays that watch at the same time.
pub(super) const WATCHERS_MAX: usize = 16;

#[derive(Debug)]
struct Watcher {
    socket: Socket,
    /// Index of its domain.
    domain: usize,
    pid: u32,
}

/// All relays that watch.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    list: Vec<Watcher>,
}

impl Watchers {
    /// Return the number of relays.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Add a relay, and tell it the spaces of its domain that are open.
    pub fn add<'a>(
        &mut self,
        (socket, domain, pid): (Socket, usize, u32),
        open: impl Iterator<Item = &'a SpaceOpened>,
    ) {
        self.list.push(Watcher { socket, domain, pid });
        let last = self.list.len() - 1;
        let told = open.filter_map(encoded).chain([Watching.encode()]).all(|message| self.list[last].hears(&message));
        if !told {
            self.list.pop();
        }
    }

    /// Tell the relays of a domain that a space has opened.
    pub fn opened(&mut self, domain: usize, space: &SpaceOpened) {
        if let Some(message) = encoded(space) {
            self.tell(domain, &message);
        }
    }

    /// Tell the relays of a domain that a space has closed.
    pub fn closed(&mut self, domain: usize, space: u32) {
        self.tell(domain, &SpaceClosed { space }.encode());
    }

    fn tell(&mut self, domain: usize, message: &[u8]) {
        self.list.retain(|watcher| watcher.domain != domain || watcher.hears(message));
    }

    /// Drop the relays that have closed their sockets. A relay has nothing to say.
    pub fn drop_closed(&mut self) {
        self.list.retain(|watcher| matches!(watcher.socket.receive(&mut [0; 1], 0), Ok(Received::Empty)));
    }

    /// Return their sockets, to wait on.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.list.iter().map(|watcher| watcher.socket.as_fd())
    }
}

impl Watcher {
    /// Send a message. Return false if the relay does not read.
    fn hears(&self, message: &[u8]) -> bool {
        let sent = self.socket.send(message, &[]);
        if let Err(error) = &sent {
            tracing::warn!(
                "relay (pid {}): cannot tell it of a space: {error}; it is disconnected and has to ask again",
                self.pid
            );
        }
        sent.is_ok()
    }
}

/// Return the message. A space was checked when its first engine attached.
fn encoded(space: &SpaceOpened) -> Option<Vec<u8>> {
    space
        .encode()
        .inspect_err(|error| tracing::error!("space {}: cannot announce it to relays: {error}", space.space))
        .ok()
}

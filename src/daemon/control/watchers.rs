//! Relays that watch which spaces are open. The control thread sends changes over their sockets and never waits: a relay that reads too slowly is
//! disconnected, and connects again. A relay sends its state, which the status shows.

use crate::status::RelayStatus;
use kvtide_wire::hello::{HEAD_BYTES, RELAY_TEXT_BYTES_MAX, RelayState, SpaceClosed, SpaceOpened, Watching};
use kvtide_wire::os::socket::{Peer, Received, Socket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Maximum relays that watch at the same time.
pub(super) const WATCHERS_MAX: usize = 16;

/// Bytes of a relay's state: head, time, length, text.
const STATE_BYTES_MAX: usize = HEAD_BYTES + 8 + 2 + RELAY_TEXT_BYTES_MAX;
/// Maximum states that a relay may send within [`STATES_WITHIN`]. It sends one a second at most; several may arrive at once.
const STATES_MAX: u32 = 60;
const STATES_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Watcher {
    socket: Socket,
    /// Index of its domain.
    domain: usize,
    /// Its last state, for the status.
    status: RelayStatus,
    /// States that it has sent since `counted_from`.
    states: u32,
    counted_from: Instant,
}

/// All relays that watch.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    list: Vec<Watcher>,
    /// The list has changed since [`Watchers::news`].
    changed: bool,
}

impl Watchers {
    /// Return the number of relays.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Add a relay, and send it the spaces of its domain that are open.
    pub fn add<'a>(
        &mut self,
        (socket, domain, name, peer): (Socket, usize, &str, Peer),
        open: impl Iterator<Item = &'a SpaceOpened>,
    ) {
        let status = RelayStatus { domain: name.into(), pid: peer.pid, uid: peer.uid, ..RelayStatus::default() };
        self.list.push(Watcher { socket, domain, status, states: 0, counted_from: Instant::now() });
        self.changed = true;
        let last = self.list.len() - 1;
        let sent = open.filter_map(encoded).chain([Watching.encode()]).all(|message| self.list[last].send(&message));
        if !sent {
            self.list.pop();
        }
    }

    /// Announce to the relays of a domain that a space has opened.
    pub fn opened(&mut self, domain: usize, space: &SpaceOpened) {
        if let Some(message) = encoded(space) {
            self.send(domain, &message);
        }
    }

    /// Announce to the relays of a domain that a space has closed.
    pub fn closed(&mut self, domain: usize, space: u32) {
        self.send(domain, &SpaceClosed { space }.encode());
    }

    fn send(&mut self, domain: usize, message: &[u8]) {
        let before = self.list.len();
        self.list.retain(|watcher| watcher.domain != domain || watcher.send(message));
        self.changed |= self.list.len() < before;
    }

    /// Read the states that relays send, and drop the relays that have closed their sockets or send anything else.
    pub fn read_states(&mut self) {
        let (before, changed) = (self.list.len(), &mut self.changed);
        self.list.retain_mut(|watcher| {
            loop {
                match watcher.read() {
                    Ok(Read::State) => *changed = true,
                    Ok(Read::Nothing) => return true,
                    Ok(Read::Closed) => return false,
                    Err(why) => {
                        tracing::warn!("relay (pid {}): {why}; it is disconnected", watcher.status.pid);
                        return false;
                    }
                }
            }
        });
        *changed |= self.list.len() < before;
    }

    /// Return the relays and their states, if they have changed since the last call.
    pub fn news(&mut self) -> Option<Vec<RelayStatus>> {
        let mut relays: Vec<_> = std::mem::take(&mut self.changed)
            .then(|| self.list.iter().map(|watcher| watcher.status.clone()).collect())?;
        relays.sort_by(|a: &RelayStatus, b| (&a.domain, a.pid).cmp(&(&b.domain, b.pid)));
        Some(relays)
    }

    /// Return their sockets, to wait on.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.list.iter().map(|watcher| watcher.socket.as_fd())
    }
}

/// Result of a read from a relay.
enum Read {
    Nothing,
    State,
    Closed,
}

impl Watcher {
    /// Read one message.
    fn read(&mut self) -> Result<Read, String> {
        let mut bytes = [0; STATE_BYTES_MAX];
        let len = match self.socket.receive(&mut bytes, 0) {
            Ok(Received::Empty) => return Ok(Read::Nothing),
            Ok(Received::Closed) => return Ok(Read::Closed),
            Ok(Received::Message(len, _)) => len,
            Err(error) => return Err(error.to_string()),
        };
        if self.counted_from.elapsed() > STATES_WITHIN {
            (self.states, self.counted_from) = (0, Instant::now());
        }
        self.states += 1;
        if self.states > STATES_MAX {
            return Err(format!("it sends its state more than {STATES_MAX} times in {STATES_WITHIN:?}"));
        }
        let RelayState { since_s, text } = RelayState::decode(&bytes[..len]).map_err(|error| error.to_string())?;
        (self.status.since_s, self.status.text) = (since_s, text);
        Ok(Read::State)
    }

    /// Send a message. Return false if the relay does not read.
    fn send(&self, message: &[u8]) -> bool {
        let sent = self.socket.send(message, &[]);
        if let Err(error) = &sent {
            tracing::warn!(
                "relay (pid {}): cannot send it a space: {error}; it is disconnected and has to ask again",
                self.status.pid
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

//! The session entries of a space, including those of ended sessions with a process that has not exited.

use crate::config::constants::RELAYS_A_SHARD as RELAYS;
use crate::session::Session;
use kvtide_tiering::api::SessionId;
use kvtide_wire::os::poll::readable;
use kvtide_wire::os::socket::Peer;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// A session entry.
#[derive(Debug)]
pub(crate) enum SessionEntry {
    /// Unused.
    Free,
    /// A session, live or ended.
    Taken(Box<AttachedPeer>),
}

/// The peer of an entry: one attached engine process.
#[derive(Debug)]
pub(crate) struct AttachedPeer {
    /// Number of the session.
    pub number: u32,
    /// Its process, user and group ids.
    pub credentials: Peer,
    /// Its process. Until it exits, frames that its jobs may still write are quarantined.
    pub pidfd: OwnedFd,
    /// NUMA node of its device or its CPUs.
    pub numa_node: Option<u16>,
    /// The core has received the exit.
    pub exited: bool,
    /// The session; None after it ended.
    pub session: Option<Session>,
}

impl AttachedPeer {
    /// Return true if its process has exited. If this cannot be determined, it counts as running and its frames stay quarantined.
    pub fn has_exited(&self) -> bool {
        matches!(readable(&[self.pidfd.as_fd()], Duration::ZERO), Ok(bits) if bits != 0)
    }
}

/// All entries, with a list of the live ones.
#[derive(Debug)]
pub(crate) struct SessionEntries {
    entries: Vec<SessionEntry>,
    /// Slots with a live session, in no order.
    live: Vec<SessionId>,
    /// Entries below this one are for engines; those behind them for the relays of each shard.
    engines: SessionId,
}

impl SessionEntries {
    /// Create `count` free entries, the last ones for the relays of `shards` shards.
    pub fn new(count: u16, shards: u16) -> SessionEntries {
        let entries = (0..count).map(|_| SessionEntry::Free).collect();
        SessionEntries {
            entries,
            live: Vec::with_capacity(usize::from(count)),
            engines: count.saturating_sub(RELAYS * shards),
        }
    }

    /// Return a free entry for a relay of a shard.
    pub fn free_for_relay(&self, shard: u16) -> Option<SessionId> {
        let first = self.engines.checked_add(shard.checked_mul(RELAYS)?)?;
        let is_free = |at: &SessionId| matches!(self.entries.get(usize::from(*at)), Some(SessionEntry::Free));
        (first..first.checked_add(RELAYS)?).find(is_free)
    }

    /// Return whether an entry is a relay's.
    pub fn is_relay(&self, session_id: SessionId) -> bool {
        session_id >= self.engines
    }

    /// Return whether an engine has a live session.
    pub fn has_engines(&self) -> bool {
        self.live.iter().any(|&live| !self.is_relay(live))
    }

    /// Return the NUMA node of each live session that named one.
    pub fn numa_nodes(&self) -> impl Iterator<Item = u16> {
        self.live.iter().filter_map(|&live| match self.entries.get(usize::from(live)) {
            Some(SessionEntry::Taken(peer)) => peer.numa_node,
            Some(SessionEntry::Free) | None => None,
        })
    }

    /// Return the live sessions of relays.
    pub fn relays(&self) -> impl Iterator<Item = SessionId> {
        self.live.iter().copied().filter(|&live| self.is_relay(live))
    }

    /// Return whether no engine has an entry.
    pub fn is_without_engines(&self) -> bool {
        self.entries.iter().take(usize::from(self.engines)).all(|entry| matches!(entry, SessionEntry::Free))
    }

    /// Return the first free entry for an engine.
    pub fn free(&self) -> Option<SessionId> {
        self.entries
            .iter()
            .take(usize::from(self.engines))
            .position(|entry| matches!(entry, SessionEntry::Free))
            .map(|session_id| session_id as SessionId)
    }

    /// Put a peer with a live session into an entry.
    pub fn take(&mut self, session_id: SessionId, peer: AttachedPeer) {
        self.entries[usize::from(session_id)] = SessionEntry::Taken(Box::new(peer));
        self.live.push(session_id);
    }

    /// Return the peer of an entry.
    pub fn peer(&mut self, session_id: SessionId) -> Option<&mut AttachedPeer> {
        match self.entries.get_mut(usize::from(session_id)) {
            Some(SessionEntry::Taken(peer)) => Some(peer),
            Some(SessionEntry::Free) | None => None,
        }
    }

    /// Return the live session of an entry.
    pub fn session(&mut self, session_id: SessionId) -> Option<&mut Session> {
        self.peer(session_id)?.session.as_mut()
    }

    /// End an entry's session and return it, so that a last message can be sent.
    pub fn lose(&mut self, session_id: SessionId) -> Option<Session> {
        let session = self.peer(session_id)?.session.take()?;
        self.live.retain(|live| *live != session_id);
        Some(session)
    }

    /// Free an entry.
    pub fn vacate(&mut self, session_id: SessionId) -> Option<AttachedPeer> {
        self.live.retain(|live| *live != session_id);
        match std::mem::replace(self.entries.get_mut(usize::from(session_id))?, SessionEntry::Free) {
            SessionEntry::Taken(peer) => Some(*peer),
            SessionEntry::Free => None,
        }
    }

    /// Return the number of live sessions.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Return the n-th live entry; the order changes when one ends.
    pub fn live_id(&self, n: usize) -> Option<SessionId> {
        self.live.get(n).copied()
    }

    /// Iterate over the live sessions.
    pub fn sessions(&mut self) -> impl Iterator<Item = (SessionId, &mut Session)> {
        self.entries.iter_mut().enumerate().filter_map(|(session_id, entry)| match entry {
            SessionEntry::Taken(peer) => Some((session_id as SessionId, peer.session.as_mut()?)),
            SessionEntry::Free => None,
        })
    }

    /// Iterate over the peers of all entries.
    pub fn peers(&self) -> impl Iterator<Item = (SessionId, &AttachedPeer)> {
        self.entries.iter().enumerate().filter_map(|(session_id, entry)| match entry {
            SessionEntry::Taken(peer) => Some((session_id as SessionId, &**peer)),
            SessionEntry::Free => None,
        })
    }

    /// Return true if all entries are free.
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(|entry| matches!(entry, SessionEntry::Free))
    }

    /// Return the number of entries with an ended session that are not free yet.
    pub fn waiting_for_exit(&self) -> usize {
        let waits = |entry: &&SessionEntry| matches!(entry, SessionEntry::Taken(peer) if peer.session.is_none());
        self.entries.iter().filter(waits).count()
    }
}

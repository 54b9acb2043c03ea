//! The daemon's sessions, for limits and status. Rarely accessed, shared by all threads; no guard is held across a call.

use dashmap::DashMap;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Data of a session that is used outside its core thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionInfo {
    /// Its number, as in the Welcome message and in logs.
    pub session: u32,
    /// Number of its space.
    pub space: u32,
    /// Index of its domain in the configuration.
    #[serde(skip)]
    pub domain: usize,
    /// Process id, in the daemon's namespace.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// Name of its program.
    pub program: String,
    /// Time at which it attached, in seconds since the epoch.
    pub attached_s: u64,
    /// Protocol version that it speaks with the daemon.
    #[serde(default)]
    pub protocol: u32,
    /// Shard.
    pub shard: u16,
    /// It is a relay's: it counts for no limit of sessions, and it is not waited for.
    pub relay: bool,
    /// False after the session ended, while its process or its frames still exist.
    pub live: bool,
}

/// Counts of attaches and sessions since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionTotals {
    /// Sessions attached.
    pub attached: u64,
    /// Sessions ended, for any reason.
    pub ended: u64,
    /// Sessions ended by the daemon, because of a protocol violation or a system failure; included in `ended`.
    pub expelled: u64,
    /// Attaches rejected.
    pub refused: u64,
}

/// An event of a peer or a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It attached.
    Attached,
    /// Its session ended.
    Ended,
    /// The daemon ended its session.
    Expelled,
    /// Its attach was rejected.
    Refused,
}

/// All sessions by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry {
    sessions: Arc<DashMap<u32, SessionInfo>>,
    next: Arc<AtomicU32>,
    /// By [`Outcome`].
    outcomes: Arc<[AtomicU64; 4]>,
}

impl Registry {
    /// Add a session under a new number.
    pub fn add(&self, info: impl FnOnce(u32) -> SessionInfo) -> u32 {
        let session = self.next.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.sessions.insert(session, info(session));
        session
    }

    /// Count an event.
    pub fn count_outcome(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Return the counts.
    pub fn totals(&self) -> SessionTotals {
        let count = |outcome: Outcome| self.outcomes[outcome as usize].load(Ordering::Relaxed);
        SessionTotals {
            attached: count(Outcome::Attached),
            ended: count(Outcome::Ended),
            expelled: count(Outcome::Expelled),
            refused: count(Outcome::Refused),
        }
    }

    /// Mark a session as ended.
    pub fn lost(&self, session: u32) {
        if let Some(mut info) = self.sessions.get_mut(&session) {
            info.live = false;
        }
    }

    /// Remove a session.
    pub fn remove(&self, session: u32) {
        self.sessions.remove(&session);
    }

    /// Return the number of engines' sessions of a domain, or of all; ended ones that are not removed yet are included.
    pub fn count(&self, domain: Option<usize>) -> u32 {
        self.sessions.iter().filter(|entry| !entry.relay && domain.is_none_or(|domain| entry.domain == domain)).count()
            as u32
    }

    /// Return all sessions, by number.
    pub fn list(&self) -> Vec<SessionInfo> {
        let mut list: Vec<SessionInfo> = self.sessions.iter().map(|entry| entry.value().clone()).collect();
        list.sort_by_key(|info| info.session);
        list
    }

    /// Remove the sessions of a space after its thread ended without ending them.
    pub fn remove_space(&self, space: u32) {
        self.sessions.retain(|_, info| info.space != space);
    }
}

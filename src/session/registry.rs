//! The sessions of the daemon, for limits and the status: cold, shared by all threads, no guard held across a call.

use dashmap::DashMap;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What is known of a session outside its core thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SessionInfo {
    /// Its number, as in the Welcome and in logs.
    pub session: u32,
    /// Number of its space.
    pub space: u32,
    /// Index of its domain in the configuration.
    #[serde(skip)]
    pub domain: usize,
    /// Process, in the daemon's namespace.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Shard.
    pub shard: u16,
    /// False once the lease has ended, while its process or its frames still linger.
    pub live: bool,
}

/// What became of peers and sessions since the daemon began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SessionTotals {
    /// Sessions that attached.
    pub attached: u64,
    /// Sessions whose lease ended, for whatever reason.
    pub ended: u64,
    /// Of those, ended by the daemon: a breach of the protocol, or a failure of the system.
    pub expelled: u64,
    /// Peers that were not let in.
    pub refused: u64,
}

/// Something that happens to a peer or a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It attached.
    Attached,
    /// Its lease ended.
    Ended,
    /// The daemon ended it.
    Expelled,
    /// It was not let in.
    Refused,
}

/// All sessions by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry {
    sessions: Arc<DashMap<u32, SessionInfo>>,
    next: Arc<AtomicU32>,
    /// By [`Fate`].
    fates: Arc<[AtomicU64; 4]>,
}

impl Registry {
    /// Adds one under a new number.
    pub fn add(&self, info: impl FnOnce(u32) -> SessionInfo) -> u32 {
        let session = self.next.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.sessions.insert(session, info(session));
        session
    }

    /// Counts what happened to a peer or a session.
    pub fn note(&self, fate: Fate) {
        self.fates[fate as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// What happened so far.
    pub fn totals(&self) -> SessionTotals {
        let count = |fate: Fate| self.fates[fate as usize].load(Ordering::Relaxed);
        SessionTotals {
            attached: count(Fate::Attached),
            ended: count(Fate::Ended),
            expelled: count(Fate::Expelled),
            refused: count(Fate::Refused),
        }
    }

    /// Its lease has ended.
    pub fn lost(&self, session: u32) {
        if let Some(mut info) = self.sessions.get_mut(&session) {
            info.live = false;
        }
    }

    /// Nothing of it is left.
    pub fn remove(&self, session: u32) {
        self.sessions.remove(&session);
    }

    /// Sessions, those included that linger; of one domain, or of all.
    pub fn count(&self, domain: Option<usize>) -> u32 {
        self.sessions.iter().filter(|entry| domain.is_none_or(|domain| entry.domain == domain)).count() as u32
    }

    /// All of them, by number.
    pub fn list(&self) -> Vec<SessionInfo> {
        let mut list: Vec<SessionInfo> = self.sessions.iter().map(|entry| entry.value().clone()).collect();
        list.sort_by_key(|info| info.session);
        list
    }

    /// Forgets the sessions of a space whose thread ended without saying goodbye to them.
    pub fn remove_space(&self, space: u32) {
        self.sessions.retain(|_, info| info.space != space);
    }
}

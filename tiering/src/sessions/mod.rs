//! Sessions: each is one shard of one engine replica. This layer has what is in their rings: requests that wait, jobs in flight,
//! completions to come.
//!
//! - `ops`, `work`: pending requests: their phases, and what each kind needs until it ends
//! - `change`: what layers above read, and what they change of requests and jobs
//! - `deadlines`: the heap of their deadlines
//! - `complete`: completions, as actions
//! - `jobs`: jobs in flight
//! - `late`: limits of copies that may never end
//! - `wake`: sessions with work to issue, and the timer
//! - `per_session`: the table that every layer has for what it knows of a session
//!
//! It promises one completion a request, and that what is woken or due is served by `requests`. It knows pages, blocks and frames by
//! number only.
//!
//! Invariants: an op is in the list of its phase; a pending op is in the heap once, unless it only waits for late copies; `pending` of an op
//! is the number of its live jobs.

mod change;
mod complete;
mod deadlines;
mod jobs;
mod late;
mod ops;
mod per_session;
mod wake;
mod work;

pub(crate) use complete::Who;
pub(crate) use deadlines::Deadlines;
pub(crate) use jobs::{JobRec, Jobs, Task};
pub(crate) use late::{LATE_US, touches_host};
pub(crate) use ops::{Op, Ops, Phase};
pub(crate) use per_session::PerSession;
pub(crate) use work::*;

use crate::api::{Action, SessionId, SpaceConfig};
use crate::config::Geometry;
use crate::counters::Counters;
use crate::trace::Trace;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The sessions of a space, what they asked for, and what is sent to them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sessions {
    cfg: SpaceConfig,
    geo: Geometry,
    now: u64,
    /// Number of announced steps over all sessions.
    clock: u32,
    sessions: PerSession<Session>,
    deadlines: Deadlines,
    /// Earliest time at which refused jobs or parked sequences are due, in microseconds.
    timer: Option<u64>,
    /// Earliest time for the next scan for late jobs; `u64::MAX` while no job is in flight.
    late_at: u64,
    /// Actions that found no room in the caller's buffer and belong to no other queue.
    actions_out: VecDeque<Action>,
    /// Sessions with work to issue.
    woken: VecDeque<u16>,
    pub(crate) counters: Counters,
    trace: Trace,
}

impl Sessions {
    pub fn new(cfg: SpaceConfig, geo: Geometry) -> Sessions {
        let sessions = usize::from(cfg.limits.sessions_max);
        Sessions {
            now: 0,
            clock: 0,
            sessions: PerSession::new(cfg.limits.sessions_max),
            deadlines: Deadlines::default(),
            timer: None,
            late_at: u64::MAX,
            actions_out: VecDeque::with_capacity(sessions * 2 + 64),
            woken: VecDeque::with_capacity(sessions),
            counters: Counters::default(),
            trace: Trace::default(),
            geo,
            cfg,
        }
    }

    /// Attach a session to an empty entry, with all tables that it will use.
    pub fn attach(&mut self, s: SessionId, shard: u16) {
        let limits = &self.cfg.limits;
        self.sessions[s] = Session {
            life: Life::Live,
            shard,
            jobs: Jobs::new(limits.jobs_max),
            ops: Ops::new(limits.requests_max),
            woken: self.sessions[s].woken,
            ..Session::default()
        };
        self.deadlines.reserve(limits.requests_max as usize);
        self.actions_out.reserve(limits.requests_max as usize);
    }

    /// End a session. Its process may still run until `life` is [`Life::Empty`].
    pub fn detach(&mut self, s: SessionId, life: Life) {
        let lost_us = if life == Life::Lost { self.now } else { 0 };
        self.sessions[s] = Session { life, lost_us, woken: self.sessions[s].woken, ..Session::default() };
    }

    /// Return whether a session is attached.
    pub fn is_live(&self, s: SessionId) -> bool {
        self.sessions.get(s).is_some_and(|session| session.life == Life::Live)
    }

    /// Return the bytes of all tables, from their allocated capacities.
    pub fn bytes(&self) -> usize {
        self.sessions.bytes()
            + self.sessions.iter().map(Session::bytes).sum::<usize>()
            + self.deadlines.bytes()
            + self.actions_out.capacity() * size_of::<Action>()
            + self.woken.capacity() * size_of::<u16>()
    }
}

/// State of a session entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Life {
    #[default]
    Empty,
    Live,
    /// Disconnected; the process may still run.
    Lost,
}

/// One session entry: its two rings.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Session {
    pub life: Life,
    pub shard: u16,
    pub jobs: Jobs,
    pub ops: Ops,
    /// Completions that wait for room, in addition to pending ops.
    pub completions_waiting: u32,
    /// In the core's queue of sessions to process.
    pub woken: bool,
    /// Bytes of host memory used by copies in flight between host and the engine's own blocks, including late copies.
    pub copy_bytes: u64,
    /// Bytes of host memory used by its late copies and by late stores from tier 0.
    pub late_bytes: u64,
    /// Its late jobs exceed the limit, and the daemon was asked to end the session.
    pub overdrawn: bool,
    /// Time of the next check for late jobs; 0: no job in flight can become late.
    pub late_at: u64,
    /// Time at which the session was lost.
    pub lost_us: u64,
}

impl Session {
    /// Return the bytes of all vectors.
    fn bytes(&self) -> usize {
        self.jobs.recs.capacity() * size_of::<JobRec>() + self.ops.recs.capacity() * size_of::<Op>()
    }
}

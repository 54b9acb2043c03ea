//! The sessions of a space, including ended ones with a process that has not exited: their entries, requests and jobs.

use super::messages::AttachRequest;
use crate::answer::Answer;
use crate::attach::{Refusal, refuse};
use crate::config::Human;
use crate::config::constants::RELAYS_A_SHARD as RELAYS;
use crate::session::{End, EndedJob, JobTimes, Notice, Outcome, Registry, RequestTimes, Session, Violation};
use crate::trace::{OpenSpan, TracedLookup, Tracer};
use kvtide_tiering::Core;
use kvtide_tiering::api::{Job, Request, SessionId, SpaceConfig};
use kvtide_wire::entry::Submission;
use kvtide_wire::hello::Welcome;
use kvtide_wire::job::Ask;
use kvtide_wire::lists::List;
use kvtide_wire::os::poll::readable;
use kvtide_wire::os::socket::Peer;
use kvtide_wire::request::{self, Scratch};
use kvtide_wire::status::Status;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The peer of an entry: one attached engine process.
#[derive(Debug)]
struct AttachedPeer {
    /// Number of the session.
    number: u32,
    /// Its process, user and group ids.
    credentials: Peer,
    /// Its process. Until it exits, frames that its jobs may still write are quarantined.
    pidfd: OwnedFd,
    /// NUMA node of its device or its CPUs.
    numa_node: Option<u16>,
    /// The core has received the exit.
    exited: bool,
    /// The session; None after it ended.
    session: Option<Session>,
}

/// Owns the entries of sessions, the requests and jobs in hand with their durations and spans, and which sessions end next. The
/// daemon's registry learns every change here.
#[derive(Debug)]
pub(super) struct Sessions {
    space: u32,
    /// None: free.
    entries: Vec<Option<Box<AttachedPeer>>>,
    /// Slots with a live session, in no order.
    live: Vec<SessionId>,
    /// Entries below this one are for engines; those behind them for the relays of each shard.
    engines: SessionId,
    /// New entries with descriptors that the sleeper must watch.
    new: Vec<SessionId>,
    /// Sessions to end, with the reasons: violations are found in the middle of other work.
    ending: Vec<(SessionId, End)>,
    /// Attach requests received; the same at the last report that no engine is left, and that the space is vacant.
    attaches: u64,
    told_left: u64,
    told_vacant: u64,
    /// Identity of the last engine that attached and has one.
    identity: Arc<str>,
    /// Start of the last round; durations are measured by rounds.
    now_us: u64,
    request_times: RequestTimes,
    job_times: JobTimes,
    /// List of the request in hand, and what was decoded.
    list: List,
    scratch: Scratch,
    /// Page size of each plane.
    page_bytes: Vec<u32>,
    registry: Registry,
    /// Makes spans of traced requests, if the daemon traces.
    tracer: Option<Tracer>,
}

/// A request as its engine sent it, and as it was decoded.
type Taken<'a> = (Submission, Result<Request<'a>, Status>);

/// Return whether only relays may send a request: a hash is what a tenant's salts rely on.
fn is_relays(request: &Request<'_>) -> bool {
    matches!(request, Request::Follow { .. } | Request::ListBlocks { .. } | Request::LoadHashed { .. })
}

impl Sessions {
    /// Create free entries, the last ones for the relays of each shard.
    pub fn new(space: u32, config: &SpaceConfig, registry: Registry, tracer: Option<Tracer>) -> Sessions {
        let count = config.limits.sessions_max;
        Sessions {
            space,
            entries: (0..count).map(|_| None).collect(),
            live: Vec::with_capacity(usize::from(count)),
            engines: count.saturating_sub(RELAYS * config.shards),
            new: Vec::new(),
            ending: Vec::new(),
            attaches: 0,
            told_left: 0,
            told_vacant: 0,
            identity: Arc::default(),
            now_us: 0,
            request_times: RequestTimes::default(),
            job_times: JobTimes::default(),
            list: List::default(),
            scratch: Scratch::new(),
            page_bytes: config.planes.iter().map(|plane| plane.page_bytes).collect(),
            registry,
            tracer,
        }
    }

    /// Set the time of all requests and jobs of a round.
    pub fn begin_round(&mut self, now_us: u64) {
        self.now_us = now_us;
    }

    /// Take the next request of a channel, or the reason to refuse it. `draining`: all are refused.
    pub fn take(&mut self, id: SessionId, channel: usize, draining: bool) -> Result<Option<Taken<'_>>, Violation> {
        let Sessions { entries, engines, now_us, list, scratch, tracer, .. } = self;
        let peer = entries.get_mut(usize::from(id)).and_then(Option::as_deref_mut);
        let Some(AttachedPeer { number, session: Some(session), .. }) = peer else { return Ok(None) };
        let channel = &mut session.channels[channel];
        let Some((submission, context)) = channel.take(*now_us, list)? else { return Ok(None) };
        let request = match request::decode(&submission, list.words(), scratch) {
            _ if draining => Err(Status::Daemon),
            Ok(request) if id < *engines && is_relays(&request) => Err(Status::Permission),
            request => request,
        };
        if let (Some(context), Some(_)) = (context, tracer) {
            channel.open(submission.tag, OpenSpan::new(*number, context, submission.op, request.as_ref().ok()));
        }
        Ok(Some((submission, request)))
    }

    /// Answer a request of a session, if it is live. The core knows why blocks are not cached.
    pub fn answer(&mut self, session_id: SessionId, answer: &Answer<'_>, core: &Core) -> Result<(), Violation> {
        let Some(session) = session_of(&mut self.entries, session_id) else { return Ok(()) };
        let Some(answered) = session.answer(answer, self.now_us, &mut self.request_times)? else {
            tracing::error!("space {}: request {} of session {session_id} completed twice", self.space, answer.tag);
            return Ok(());
        };
        if let (Some(tracer), Some(span)) = (&mut self.tracer, answered.span) {
            if let Some((trace, lookup)) = span.lookup(answer, self.now_us) {
                tracer.remember(trace, lookup);
            }
            let missing = span.missing(answer).and_then(|hash| core.absence(hash));
            tracer.finish(&span, Some(answer), missing.map(|absence| absence.cause));
        }
        Ok(())
    }

    /// Post a job to a session, if it is live.
    pub fn post(&mut self, session_id: SessionId, id: u32, job: &Job, ask: impl FnOnce() -> Ask) {
        let Some(session) = session_of(&mut self.entries, session_id) else { return };
        let bytes_of = |plane: u16| self.page_bytes.get(usize::from(plane)).copied().unwrap_or(0);
        if let Err(end) = session.post(id, job, ask(), self.now_us, bytes_of) {
            self.end_later(session_id, end);
        }
    }

    /// Take the next result of a session's jobs.
    pub fn job_done(&mut self, session_id: SessionId) -> Result<Option<EndedJob>, Violation> {
        match session_of(&mut self.entries, session_id) {
            Some(session) => session.job_done(self.now_us, &mut self.job_times),
            None => Ok(None),
        }
    }

    /// Return the durations of all requests and jobs.
    pub fn times(&self) -> (RequestTimes, JobTimes) {
        (self.request_times, self.job_times)
    }

    /// Return the last lookup of a trace.
    pub fn lookup_of(&self, trace: u128) -> Option<TracedLookup> {
        self.tracer.as_ref()?.lookup_of(trace)
    }

    /// Return a free entry for a relay of a shard, or for an engine.
    pub fn free(&self, relay: bool, shard: u16) -> Result<SessionId, Refusal> {
        let is_free = |at: &SessionId| matches!(self.entries.get(usize::from(*at)), Some(None));
        let (free, why) = match relay {
            true => {
                let first = shard.checked_mul(RELAYS).and_then(|first| self.engines.checked_add(first));
                let free = first.and_then(|first| (first..first.checked_add(RELAYS)?).find(is_free));
                (free, "two relays of this shard are attached, or have not exited")
            }
            false => {
                let free = (0..self.engines).find(is_free);
                (free, "all session entries of the space are in use (limits.space_sessions_max)")
            }
        };
        free.ok_or_else(|| Refusal { status: Status::Limit, text: why.into() })
    }

    /// Begin the session of an admitted request in a free entry: send the Welcome, then the messages on the space's slabs.
    pub fn attach<'a>(
        &mut self,
        session_id: SessionId,
        request: AttachRequest,
        welcome: &Welcome,
        mut slabs: impl Iterator<Item = &'a Notice>,
    ) {
        self.attaches += 1;
        let AttachRequest { number, socket, peer, pidfd, side, fds, limits, frames, numa_node, relay, .. } = request;
        if !relay && !request.identity.is_empty() {
            self.identity = request.identity.into();
        }
        let welcomed = socket.send(&welcome.encode(), &fds.as_fds());
        let mut session = Session::new(socket, side, limits.shape.jobs);
        let told = slabs.try_for_each(|notice| session.notify(notice.clone()));
        let (exited, session) = (false, Some(session));
        let attached = AttachedPeer { number, credentials: peer, pidfd, numa_node, exited, session };
        self.entries[usize::from(session_id)] = Some(Box::new(attached));
        self.live.push(session_id);
        self.new.push(session_id);
        self.registry.count_outcome(Outcome::Attached);
        // This is address space in the engine; only the entries of blocks in use take memory.
        let entries = u64::from(limits.blocks_max) * self.page_bytes.len() as u64;
        let tables = match frames.iter().any(|count| *count > 0) {
            true => format!(", page tables of at most {} per lane", Human(4 * entries)),
            false => String::new(),
        };
        tracing::info!(
            "session {number} (pid {}, uid {}{}) attached to space {}{tables}",
            peer.pid,
            peer.uid,
            if relay { ", a relay" } else { "" },
            self.space
        );
        if let Err(error) = welcomed {
            self.end_later(session_id, End::System(format!("cannot send the welcome message: {error}")));
        } else if let Err(end) = told {
            self.end_later(session_id, end);
        }
    }

    /// Refuse an attach request.
    pub fn refuse(&mut self, request: &AttachRequest, refusal: &Refusal) {
        self.attaches += 1;
        refuse(&self.registry, &request.socket, request.peer, refusal);
        self.registry.remove(request.number);
    }

    /// Return the attach requests received if no engine is left, once after a request.
    pub fn newly_left(&mut self) -> Option<u64> {
        let left = !self.has_engines();
        (left && std::mem::replace(&mut self.told_left, self.attaches) < self.attaches).then_some(self.attaches)
    }

    /// Return the attach requests received, once after a request.
    pub fn newly_vacant(&mut self) -> Option<u64> {
        (std::mem::replace(&mut self.told_vacant, self.attaches) < self.attaches).then_some(self.attaches)
    }

    /// Return whether an engine has a live session.
    pub fn has_engines(&self) -> bool {
        self.live.iter().any(|live| *live < self.engines)
    }

    /// Return whether no engine has an entry.
    pub fn is_without_engines(&self) -> bool {
        self.entries.iter().take(usize::from(self.engines)).all(Option::is_none)
    }

    /// Return the identity of the last engine that attached and has one.
    pub fn identity(&self) -> &Arc<str> {
        &self.identity
    }

    /// Return the NUMA node of each live session that named one.
    pub fn numa_nodes(&self) -> impl Iterator<Item = u16> {
        self.live.iter().filter_map(|&live| self.peer(live)?.numa_node)
    }

    fn peer(&self, session_id: SessionId) -> Option<&AttachedPeer> {
        self.entries.get(usize::from(session_id))?.as_deref()
    }

    fn peer_mut(&mut self, session_id: SessionId) -> Option<&mut AttachedPeer> {
        self.entries.get_mut(usize::from(session_id))?.as_deref_mut()
    }

    /// Return the number of the session in an entry, live or ended.
    pub fn number(&self, session_id: SessionId) -> Option<u32> {
        Some(self.peer(session_id)?.number)
    }

    /// Return the live session of an entry.
    pub fn session(&mut self, session_id: SessionId) -> Option<&mut Session> {
        session_of(&mut self.entries, session_id)
    }

    /// Return the n-th live entry; the order changes when one ends.
    pub fn live_id(&self, n: usize) -> Option<SessionId> {
        self.live.get(n).copied()
    }

    /// Iterate over the live sessions.
    pub fn sessions(&mut self) -> impl Iterator<Item = (SessionId, &mut Session)> {
        live(&mut self.entries)
    }

    /// Iterate over the live sessions and their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (SessionId, u32, &Session)> {
        let peers = (0..).zip(&self.entries).filter_map(|(session_id, entry)| Some((session_id, entry.as_deref()?)));
        peers.filter_map(|(session_id, peer)| Some((session_id, peer.number, peer.session.as_ref()?)))
    }

    /// Iterate once over the new entries: the process, and the session unless it has ended.
    pub fn take_new(&mut self) -> impl Iterator<Item = (SessionId, &OwnedFd, Option<&Session>)> {
        let new = std::mem::take(&mut self.new);
        new.into_iter().filter_map(|session_id| {
            let peer = self.peer(session_id)?;
            Some((session_id, &peer.pidfd, peer.session.as_ref()))
        })
    }

    /// Send a message on a slab to every session.
    pub fn notify(&mut self, notice: &Notice) {
        let failed =
            |(session_id, session): (_, &mut Session)| Some((session_id, session.notify(notice.clone()).err()?));
        self.ending.extend(live(&mut self.entries).filter_map(failed));
    }

    /// Queue a session to end.
    pub fn end_later(&mut self, session_id: SessionId, end: End) {
        self.ending.push((session_id, end));
    }

    /// Queue the sessions of relays to end: the space closes. Return false if there are none.
    pub fn end_relays(&mut self) -> bool {
        let before = self.ending.len();
        let relays = self.live.iter().filter(|live| **live >= self.engines);
        self.ending.extend(relays.map(|relay| (*relay, End::SpaceCloses)));
        self.ending.len() > before
    }

    /// Take a queued session.
    pub fn next_to_end(&mut self) -> Option<(SessionId, End)> {
        self.ending.pop()
    }

    /// End the live session of an entry and tell its engine. Return false if there is none. The process may exit later.
    pub fn lose(&mut self, session_id: SessionId, end: &End) -> bool {
        let Some(peer) = self.peer_mut(session_id) else { return false };
        let Some(mut session) = peer.session.take() else { return false };
        let (number, pid) = (peer.number, peer.credentials.pid);
        self.live.retain(|live| *live != session_id);
        self.registry.lost(number);
        match end {
            End::Violation(_) | End::Late { .. } | End::System(_) => {
                self.registry.count_outcome(Outcome::Expelled);
                tracing::warn!("session {number} (pid {pid}) ended: {end}");
            }
            End::Left | End::Closed | End::Exited | End::Shutdown | End::SpaceCloses => {
                tracing::info!("session {number} (pid {pid}) ended: {end}")
            }
        }
        self.registry.count_outcome(Outcome::Ended);
        session.send_disconnect(end);
        if let Some(tracer) = &self.tracer {
            session.take_spans().for_each(|span| tracer.finish(&span, None, None));
        }
        true
    }

    /// Return true if the process of an entry has exited. If this cannot be determined, it counts as running and its frames stay
    /// quarantined.
    pub fn has_exited(&self, session_id: SessionId) -> bool {
        let exited =
            |peer: &AttachedPeer| matches!(readable(&[peer.pidfd.as_fd()], Duration::ZERO), Ok(bits) if bits != 0);
        self.peer(session_id).is_some_and(exited)
    }

    /// Record that the peer of an entry does not access host memory any more; its entry need not be kept for it. Return false if
    /// that is known.
    pub fn set_exited(&mut self, session_id: SessionId) -> bool {
        self.peer_mut(session_id).is_some_and(|peer| !std::mem::replace(&mut peer.exited, true))
    }

    /// Free an entry.
    pub fn vacate(&mut self, session_id: SessionId) {
        self.live.retain(|live| *live != session_id);
        if let Some(peer) = self.entries.get_mut(usize::from(session_id)).and_then(Option::take) {
            self.registry.remove(peer.number);
            tracing::debug!("session {}: removed", peer.number);
        }
    }

    /// Return true if all entries are free.
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(Option::is_none)
    }

    /// Return the number of entries with an ended session that are not free yet.
    pub fn waiting_for_exit(&self) -> usize {
        self.entries.iter().flatten().filter(|peer| peer.session.is_none()).count()
    }
}

fn session_of(entries: &mut [Option<Box<AttachedPeer>>], session_id: SessionId) -> Option<&mut Session> {
    entries.get_mut(usize::from(session_id))?.as_deref_mut()?.session.as_mut()
}

fn live(entries: &mut [Option<Box<AttachedPeer>>]) -> impl Iterator<Item = (SessionId, &mut Session)> {
    (0..).zip(entries).filter_map(|(session_id, entry)| Some((session_id, entry.as_deref_mut()?.session.as_mut()?)))
}

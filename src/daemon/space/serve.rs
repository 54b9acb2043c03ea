//! Input of engines to the core; actions of the core to engines, to the node and to the control thread.

use super::clock::Clock;
use super::flight::Flight;
use super::integrity_sample::IntegritySample;
use super::messages::Report;
use super::nvme::{Ended, LogEnded, Nvme};
use super::restore::RestoreState;
use super::session_entries::{AttachedPeer, SessionEntries};
use super::slabs::Slabs;
use super::status::SpaceStatus;
use crate::answer::Answer;
use crate::host::NodeMessage;
use crate::session::{Comparison, End, EndedJob, JobTimes, Registry, RequestTimes, Violation};
use crate::trace::{OpenSpan, Tracer};
use kvtide_rt::mail::RetryQueue;
use kvtide_rt::published::Publisher;
use kvtide_tiering::ActionBuf;
use kvtide_tiering::Error as CoreError;
use kvtide_tiering::LIST_MAX;
use kvtide_tiering::api::{Event, Request, SessionId};
use kvtide_wire::entry::LIST_WORDS;
use kvtide_wire::lists::List;
use kvtide_wire::request::{self, Scratch};
use kvtide_wire::score_areas::{Joined, SCORES_TURN};
use kvtide_wire::status::Status;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Requests taken from one channel before the next channel is served.
const TURN: usize = 32;
/// Completions handled in a row: jobs of one session, transfers, log requests. Bounds how long a request waits behind them.
const ENDS_TURN: usize = 32;
/// Interval at which a busy thread asks the core for its next deadline; deadlines are milliseconds away or more.
const ASK_US: u64 = 100;
/// Capacity of the action buffer: many times what one event usually causes.
pub(super) const ACTIONS: usize = 1024;
/// Capacity of its list, in words.
pub(super) const WORDS: usize = 16 * LIST_MAX;

const _: () = assert!(LIST_MAX <= LIST_WORDS, "every list of the core fits into a tag's area");

/// A running space.
#[derive(Debug)]
pub(super) struct Space {
    pub number: u32,
    pub name: String,
    pub domain: String,
    /// Identity of the last engine of another space with this name that had blocks when this one started; empty if there was none.
    pub other_identity: String,
    /// Identity of the last engine that attached and has one.
    pub identity: Arc<str>,
    pub core: Flight,
    pub session_entries: SessionEntries,
    pub clock: Clock,
    /// Start of the last round; durations are measured by rounds.
    pub now_us: u64,
    pub control: RetryQueue<Report>,
    pub node: RetryQueue<NodeMessage>,
    pub registry: Registry,
    pub slabs: Slabs,
    pub nvme: Nvme,
    pub sample: IntegritySample,
    pub restore_state: RestoreState,
    /// Region requests that the node has not answered; a region granted to an ended space would stay unused.
    pub regions_asked: u32,
    /// Page size of each plane.
    pub page_bytes: Vec<u32>,
    /// Attach requests received.
    pub attaches: u64,
    /// Attach requests received at the last report that the space is vacant.
    pub told_vacant: u64,
    /// Attach requests received at the last report that the last session has left.
    pub told_left: u64,
    /// Daily NVMe write limit set by the node.
    pub nvme_bytes_per_day: Option<u64>,
    /// Deadline of the shutdown, if shutting down.
    pub drain_until_us: Option<u64>,
    /// Next deadline of the core.
    pub due_us: Option<u64>,
    /// Time at which it was last queried.
    pub asked_us: u64,
    pub stats: ThreadStats,
    pub figures: Publisher<SpaceStatus>,
    pub request_times: RequestTimes,
    pub job_times: JobTimes,
    pub actions: ActionBuf,
    pub list: List,
    pub scratch: Scratch,
    /// Sessions to end, with the reasons: violations are found in the middle of other work.
    pub ending: Vec<(SessionId, End)>,
    /// The node requested a slab; true: also one with cached blocks.
    pub reclaim: Option<bool>,
    /// Value of `slabs.returned` before the request that is being answered.
    pub returned_before: Option<u64>,
    /// The space ends once nothing is in flight.
    pub retiring: bool,
    /// Makes spans of traced requests, if the daemon traces.
    pub tracer: Option<Tracer>,
    /// New entries with descriptors that the sleeper must watch.
    pub new_sessions: Vec<SessionId>,
}

/// Return whether only relays may send a request: a hash is what a tenant's salts rely on.
fn is_relays(request: &Request<'_>) -> bool {
    matches!(request, Request::Follow { .. } | Request::ListBlocks { .. } | Request::LoadHashed { .. })
}

/// Stats of a space's core thread.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadStats {
    /// Requests of engines.
    pub requests: u64,
    /// Jobs completed by engines.
    pub jobs: u64,
    /// Bytes of the successful ones.
    pub job_bytes: u64,
    /// Completed transfers between host memory and disks.
    pub transfers: u64,
    /// Completed log requests.
    pub log_requests: u64,
    /// Restored blocks of an earlier run.
    pub restored: u64,
    /// Restored blocks with lost ancestors.
    pub unreachable: u64,
}

impl Space {
    /// Process the input of engines, session by session. Return false if there was none.
    pub fn round(&mut self, now_us: u64) -> bool {
        self.now_us = now_us;
        let mut worked = false;
        let mut n = 0;
        while let Some(session_id) = self.session_entries.live_id(n) {
            match self.serve(session_id, now_us) {
                Ok(some) => worked |= some,
                Err(violation) => self.ending.push((session_id, End::Violation(violation))),
            }
            n += 1;
        }
        worked |= self.take_transfers(now_us);
        worked |= self.core.has_output();
        if worked {
            self.go_on(now_us);
        }
        if worked && now_us.saturating_sub(self.asked_us) >= ASK_US {
            self.ask_due(now_us);
        }
        if self.due_us.is_some_and(|due_us| due_us <= now_us) {
            self.tell(now_us, Event::Tick);
            self.ask_due(now_us);
        }
        worked |= self.end_all(now_us);
        for (_, session) in self.session_entries.sessions() {
            session.wake();
        }
        worked
    }

    fn serve(&mut self, session_id: SessionId, now_us: u64) -> Result<bool, Violation> {
        let mut worked = false;
        for _ in 0..ENDS_TURN {
            let Some(EndedJob { id: job, status, bytes, comparison }) = self.job_done(session_id)? else { break };
            worked = true;
            self.stats.jobs += 1;
            self.stats.job_bytes += bytes;
            if let Some(comparison) = comparison {
                self.handle_comparison(session_id, comparison);
            }
            self.tell(now_us, Event::JobDone { session: session_id, job, status });
        }
        let channels = self.session_entries.session(session_id).map_or(0, |session| session.channels.len());
        for channel in 0..channels {
            for _ in 0..TURN {
                if !self.request(session_id, channel, now_us)? {
                    break;
                }
                worked = true;
            }
        }
        Ok(worked | self.take_scores(session_id, now_us))
    }

    /// Pass the attention scores of a session's lanes to the core. Return false if there were none.
    fn take_scores(&mut self, session_id: SessionId, now_us: u64) -> bool {
        let mut any = false;
        let lanes = self.session_entries.session(session_id).map_or(0, |session| session.scores.lanes());
        for lane in 0..lanes {
            for _ in 0..SCORES_TURN {
                let Space { session_entries, core, actions, .. } = self;
                let Some(session) = session_entries.session(session_id) else { return any };
                let Some(Joined { seq, plane, step, kind, rest }) = session.scores.next(lane) else { break };
                any = true;
                let top = session.scores.top();
                let event = Event::Scores { session: session_id, seq, plane, step, kind, rest, top };
                let result = core.handle(now_us, event, actions);
                self.after(result);
            }
        }
        if let Some(session) = self.session_entries.session(session_id).filter(|_| any) {
            let missed = session.scores.missed();
            (session.stats.scores_lost, session.stats.scores_malformed) = (missed.lost + missed.torn, missed.malformed);
        }
        any
    }

    /// Update the integrity sample; log a mismatch at once.
    fn handle_comparison(&mut self, session_id: SessionId, comparison: Comparison) {
        self.sample.handle(comparison);
        if let Comparison::Different { at, stored, loaded } = comparison {
            let (space, session) = (self.number, self.session_entries.peer(session_id).map_or(0, |peer| peer.number));
            tracing::error!(
                "space {space}: page differs from the stored page: slab {}, frame {}, digest {stored:#010x}; session {session} \
                 loaded {loaded:#010x}; it was not used",
                at.slab,
                at.slot
            );
        }
    }

    /// Pass ended transfers and log requests to the core, a limited number at a time. Return false if there were none.
    fn take_transfers(&mut self, now_us: u64) -> bool {
        let mut any = false;
        for _ in 0..ENDS_TURN {
            let Some(Ended { id, status }) = self.nvme.next_ended(&mut self.sample) else { break };
            any = true;
            self.stats.transfers += 1;
            let event = Event::IoDone { id, status, bad: self.nvme.bad() };
            let result = self.core.handle(now_us, event, &mut self.actions);
            self.after(result);
        }
        for _ in 0..ENDS_TURN {
            let Some(LogEnded { id, status }) = self.nvme.next_log_ended() else { break };
            any = true;
            self.stats.log_requests += 1;
            self.tell(now_us, Event::LogDone { id, status });
        }
        self.return_lost();
        any
    }

    fn job_done(&mut self, session_id: SessionId) -> Result<Option<EndedJob>, Violation> {
        match self.session_entries.session(session_id) {
            Some(session) => session.job_done(self.now_us, &mut self.job_times),
            None => Ok(None),
        }
    }

    /// Process one request. Return false if there is none.
    fn request(&mut self, session_id: SessionId, channel: usize, now_us: u64) -> Result<bool, Violation> {
        let draining = self.drain_until_us.is_some();
        let Space { session_entries, list, scratch, core, actions, request_times, tracer, .. } = self;
        let relay = session_entries.is_relay(session_id);
        let Some(AttachedPeer { number, session: Some(session), .. }) = session_entries.peer(session_id) else {
            return Ok(false);
        };
        let Some((submission, context)) = session.channels[channel].take(now_us, list)? else { return Ok(false) };
        self.stats.requests += 1;
        let request = match request::decode(&submission, list.words(), scratch) {
            _ if draining => Err(Status::Daemon),
            Ok(request) if !relay && is_relays(&request) => Err(Status::Permission),
            request => request,
        };
        if let (Some(context), Some(_)) = (context, &tracer) {
            session.channels[channel]
                .open(submission.tag, OpenSpan::new(*number, context, submission.op, request.as_ref().ok()));
        }
        match request {
            Err(status) => {
                let (channel, tag) = (channel as u16, submission.tag);
                let answer = Answer { channel, tag, status, value: 0, words: &[] };
                let answered = session.answer(&answer, now_us, request_times)?;
                if let (Some(tracer), Some(span)) = (tracer, answered.and_then(|answered| answered.span)) {
                    tracer.finish(&span, Some(&answer), None);
                }
            }
            Ok(request) => {
                let (tag, timeout_us) = (submission.tag, submission.timeout_us);
                let event = Event::Request { session: session_id, channel: channel as u16, tag, timeout_us, request };
                let result = core.handle(now_us, event, actions);
                self.after(result);
            }
        }
        Ok(true)
    }

    /// Pass an event to the core and execute its actions.
    pub fn tell(&mut self, now_us: u64, event: Event<'_>) {
        self.figures.changed();
        let result = self.core.handle(now_us, event, &mut self.actions);
        self.after(result);
    }

    fn after(&mut self, result: Result<(), CoreError>) {
        match result {
            Ok(()) => {}
            Err(error @ (CoreError::Agent { session, .. } | CoreError::Overrun { session, .. })) => {
                self.ending.push((session, End::Violation(Violation::Core(error))));
            }
            Err(error) => {
                tracing::error!("space {}: the core refused an event: {error}", self.number);
                self.core.failed();
            }
        }
        self.deliver();
    }

    /// Let the core continue with output that did not fit into the buffer, once.
    pub fn go_on(&mut self, now_us: u64) {
        if self.core.has_output() {
            self.core.poll(now_us, &mut self.actions);
            self.deliver();
        }
    }

    /// Query the core's next deadline.
    pub fn ask_due(&mut self, now_us: u64) {
        self.asked_us = now_us;
        self.due_us = self.core.next_deadline();
    }
}

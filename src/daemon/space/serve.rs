//! A space as its thread serves it: input of engines to the core; actions of the core to engines, to the node and to the control
//! thread.

use super::clock::until;
use super::flight::Flight;
use super::integrity_sample::IntegritySample;
use super::messages::{AttachRequest, Granted, Region, Report, SpaceMessage, Spec};
use super::nvme::{Ended, LogEnded, Nvme, Restore, Wanted};
use super::operate::{Operate, Operated};
use super::sessions::Sessions;
use super::slabs::Slabs;
use super::sleep::{Sleeper, Wake};
use super::status::{SessionStatus, SpaceStatus, ThreadStats};
use crate::answer::Answer;
use crate::attach::Refusal;
use crate::host::NodeMessage;
use crate::session::{Comparison, End, EndedJob, Violation};
use kvtide_rt::mail::{Address, Gone, Mailbox, RetryQueue};
use kvtide_rt::published::Publisher;
use kvtide_tiering::api::{Action, Event, Limits, Policy, SessionId};
use kvtide_tiering::node::DiskGrant;
use kvtide_tiering::{Core, Error as CoreError, LIST_MAX};
use kvtide_wire::entry::{LIST_WORDS, Submission};
use kvtide_wire::hello::Welcome;
use kvtide_wire::score_areas::{Joined, SCORES_TURN};
use kvtide_wire::status::Status;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests taken from one channel before the next channel is served.
const TURN: usize = 32;
/// Completions handled in a row: jobs of one session, transfers, log requests. Bounds how long a request waits behind them.
const ENDS_TURN: usize = 32;
/// How long a retired space may continue to write pending blocks to NVMe.
const RETIRE_US: u64 = 10_000_000;
/// How long an ended space waits for its transfers; a disk that takes longer is stalled or out of service.
const SETTLE: Duration = Duration::from_secs(60);
/// Maximum sleep while another thread's mailbox is full.
const RETRY: Duration = Duration::from_millis(1);

const _: () = assert!(LIST_MAX <= LIST_WORDS, "every list of the core fits into a tag's area");

/// A running space. Its parts own the facts; it decides in which order events reach the core, and which part executes an action.
#[derive(Debug)]
pub(super) struct Space {
    number: u32,
    name: String,
    domain: String,
    /// Identity of the last engine of another space with this name that had blocks when this one started; empty if there was none.
    other_identity: String,
    core: Flight,
    sessions: Sessions,
    slabs: Slabs,
    nvme: Nvme,
    sample: IntegritySample,
    /// Attach requests that wait until the blocks of an earlier run are restored; `None`: sessions may attach. Bounded, since each
    /// request counts as a session.
    waiting: Option<Vec<AttachRequest>>,
    control: RetryQueue<Report>,
    node: RetryQueue<NodeMessage>,
    /// Daily NVMe write limit set by the node.
    nvme_bytes_per_day: Option<u64>,
    /// The space ends once nothing is in flight.
    shutdown: Option<Shutdown>,
    stats: ThreadStats,
    figures: Publisher<SpaceStatus>,
}

/// The end of a space.
#[derive(Clone, Copy, Debug)]
struct Shutdown {
    /// Its deadline.
    until_us: u64,
    /// The space makes room for another one.
    retired: bool,
}

/// Reason why a core thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// The space is empty.
    Vacant,
    /// The daemon shuts down.
    Drained,
    /// The space is retired for another one.
    Retired,
}

impl Space {
    /// Create a space without sessions, and join the node.
    pub fn new(spec: Spec, core: Core, nvme: Nvme, figures: Publisher<SpaceStatus>) -> Space {
        let mut node = RetryQueue::new(spec.node);
        node.send(spec.join);
        Space {
            number: spec.number,
            name: spec.name,
            domain: spec.domain,
            other_identity: spec.other_identity,
            core: Flight::new(core, spec.recorder_bytes, spec.dir.join(format!("space-{}.kvtrec", spec.number))),
            sessions: Sessions::new(spec.number, &spec.config, spec.registry, spec.tracer),
            slabs: Slabs::default(),
            nvme,
            sample: IntegritySample::new(spec.sample_one_in),
            waiting: (!spec.disks.is_empty()).then(Vec::new),
            control: RetryQueue::new(spec.control),
            node,
            nvme_bytes_per_day: None,
            shutdown: None,
            stats: ThreadStats::default(),
            figures,
        }
    }

    /// Begin a round: process the input of engines, session by session. Return false if there was none.
    pub fn round(&mut self, now_us: u64) -> bool {
        self.figures.round();
        self.sessions.begin_round(now_us);
        let mut worked = false;
        let mut n = 0;
        while let Some(session_id) = self.sessions.live_id(n) {
            match self.serve(session_id, now_us) {
                Ok(some) => worked |= some,
                Err(violation) => self.sessions.end_later(session_id, End::Violation(violation)),
            }
            n += 1;
        }
        worked |= self.take_transfers(now_us);
        worked |= self.core.has_output();
        if worked {
            self.go_on(now_us);
        }
        if self.core.is_due(now_us, worked) {
            self.tell(now_us, Event::Tick);
            self.core.ask_due(now_us);
        }
        worked |= self.end_all(now_us);
        for (_, session) in self.sessions.sessions() {
            session.wake();
        }
        worked
    }

    /// End a round: answer the node's request for memory once it has been handled, and publish the status if due.
    pub fn end_round(&mut self, worked: bool) {
        if !self.core.is_reclaiming()
            && let Some(gave) = self.slabs.end_reclaim()
        {
            self.node.send(NodeMessage::Reclaimed { space: self.number, gave });
        }
        if worked {
            self.figures.changed();
        }
        if self.figures.is_due() {
            let status = self.status();
            self.figures.publish(status);
        }
    }

    fn serve(&mut self, session_id: SessionId, now_us: u64) -> Result<bool, Violation> {
        let mut worked = false;
        for _ in 0..ENDS_TURN {
            let done = self.sessions.job_done(session_id)?;
            let Some(EndedJob { id: job, status, bytes, comparison }) = done else { break };
            worked = true;
            self.stats.jobs += 1;
            self.stats.job_bytes += bytes;
            if let Some(comparison) = comparison {
                self.handle_comparison(session_id, comparison);
            }
            self.tell(now_us, Event::JobDone { session: session_id, job, status });
        }
        let channels = self.sessions.session(session_id).map_or(0, |session| session.channels.len());
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

    /// Process one request. Return false if there is none.
    fn request(&mut self, session_id: SessionId, channel: usize, now_us: u64) -> Result<bool, Violation> {
        let taken = self.sessions.take(session_id, channel, self.shutdown.is_some())?;
        let Some((Submission { tag, timeout_us, .. }, request)) = taken else { return Ok(false) };
        self.stats.requests += 1;
        let channel = channel as u16;
        match request {
            Err(status) => {
                let answer = Answer { channel, tag, status, value: 0, words: &[] };
                self.sessions.answer(session_id, &answer, &self.core)?;
            }
            Ok(request) => {
                let event = Event::Request { session: session_id, channel, tag, timeout_us, request };
                let result = self.core.handle(now_us, event);
                self.after(result);
            }
        }
        Ok(true)
    }

    /// Pass the attention scores of a session's lanes to the core. Return false if there were none.
    fn take_scores(&mut self, session_id: SessionId, now_us: u64) -> bool {
        let mut any = false;
        let lanes = self.sessions.session(session_id).map_or(0, |session| session.scores.lanes());
        for lane in 0..lanes {
            for _ in 0..SCORES_TURN {
                let Some(session) = self.sessions.session(session_id) else { return any };
                let Some(Joined { seq, plane, step, kind, rest }) = session.scores.next(lane) else { break };
                any = true;
                let top = session.scores.top();
                let event = Event::Scores { session: session_id, seq, plane, step, kind, rest, top };
                let result = self.core.handle(now_us, event);
                self.after(result);
            }
        }
        if let Some(session) = self.sessions.session(session_id).filter(|_| any) {
            let missed = session.scores.missed();
            (session.stats.scores_lost, session.stats.scores_malformed) = (missed.lost + missed.torn, missed.malformed);
        }
        any
    }

    /// Update the integrity sample; log a mismatch at once.
    fn handle_comparison(&mut self, session_id: SessionId, comparison: Comparison) {
        self.sample.handle(comparison);
        if let Comparison::Different { at, stored, loaded } = comparison {
            let (space, session) = (self.number, self.sessions.number(session_id).unwrap_or(0));
            tracing::error!(
                "space {space}: page differs from the stored page: slab {}, frame {}, digest {stored:#010x}; session {session} \
                 loaded {loaded:#010x}; it was not used",
                at.slab,
                at.slot
            );
        }
    }

    /// Pass ended transfers and log requests to the core, a limited number at a time, and return slabs of disks out of service that
    /// have no transfers in flight. Return false if nothing has ended.
    fn take_transfers(&mut self, now_us: u64) -> bool {
        let mut any = false;
        for _ in 0..ENDS_TURN {
            let Some(Ended { id, status }) = self.nvme.next_ended(&mut self.sample) else { break };
            any = true;
            self.stats.transfers += 1;
            let result = self.core.handle(now_us, Event::IoDone { id, status, bad: self.nvme.bad() });
            self.after(result);
        }
        for _ in 0..ENDS_TURN {
            let Some(LogEnded { id, status }) = self.nvme.next_log_ended() else { break };
            any = true;
            self.stats.log_requests += 1;
            self.tell(now_us, Event::LogDone { id, status });
        }
        while let Some(slab) = self.nvme.next_lost() {
            self.node.send(NodeMessage::ReturnDisk { space: self.number, slab });
        }
        any
    }

    /// Pass an event to the core and execute its actions.
    pub fn tell(&mut self, now_us: u64, event: Event<'_>) {
        self.figures.changed();
        let result = self.core.handle(now_us, event);
        self.after(result);
    }

    fn after(&mut self, result: Result<(), CoreError>) {
        match result {
            Ok(()) => {}
            Err(error @ (CoreError::Agent { session, .. } | CoreError::Overrun { session, .. })) => {
                self.sessions.end_later(session, End::Violation(Violation::Core(error)));
            }
            Err(error) => {
                tracing::error!("space {}: the core refused an event: {error}", self.number);
                self.core.failed();
            }
        }
        self.deliver();
    }

    /// Let the core continue with output that did not fit into the buffer, once.
    fn go_on(&mut self, now_us: u64) {
        if self.core.has_output() {
            self.core.poll(now_us);
            self.deliver();
        }
    }

    /// Execute the core's actions. If this finds a session broken, the session is queued to end.
    fn deliver(&mut self) {
        let Space { core, sessions, slabs, nvme, sample, node, number: space, .. } = self;
        let (space, actions) = (*space, core.actions());
        for action in actions.actions() {
            match *action {
                Action::Job { session, id, job } => sessions.post(session, id, &job, || sample.ask(&job)),
                Action::Complete { session, channel, tag, status, value, list } => {
                    let answer = Answer { channel, tag, status, value, words: actions.list(list) };
                    if let Err(violation) = sessions.answer(session, &answer, core) {
                        sessions.end_later(session, End::Violation(violation));
                    }
                }
                Action::NeedSlab { class } => {
                    let numa_node = slabs.next_node(sessions.numa_nodes());
                    node.send(NodeMessage::Need { space, class, numa_node });
                }
                Action::ReturnSlab { slab } => {
                    let (memfd, notice) = slabs.remove(slab);
                    sample.returned(slab);
                    node.send(NodeMessage::Return { space, slab, memfd });
                    sessions.notify(&notice);
                }
                Action::NeedDisk { disk } => {
                    let wanted = (disk != u16::MAX).then_some(u32::from(disk));
                    nvme.ask_region();
                    node.send(NodeMessage::NeedDisk { space, wanted });
                }
                Action::ReturnDisk { slab } => {
                    nvme.remove(slab);
                    node.send(NodeMessage::ReturnDisk { space, slab });
                }
                Action::Io { id, kind, class, at, list } => {
                    nvme.begin((id, kind, class), at, actions.list(list), slabs, sample);
                }
                Action::Record { id, at, shard, urgent, list } => {
                    nvme.submit_log_request(id, urgent, Wanted::Record(at, shard, actions.list(list)));
                }
                Action::Erase { id, at, urgent } => nvme.submit_log_request(id, urgent, Wanted::Erase(at)),
                Action::Flush { id } => nvme.flush_disks(id),
                Action::Urge { id, class } => nvme.urge(id, class),
                Action::EndSession { session, late_bytes, bytes_max } => {
                    sessions.end_later(session, End::Late { bytes: late_bytes, bytes_max });
                }
                Action::SessionGone { session } => sessions.vacate(session),
            }
        }
        nvme.flush();
    }

    /// Attach a session, or refuse it, as soon as the recovery is complete.
    pub fn attach_or_queue(&mut self, now_us: u64, request: AttachRequest) {
        match &mut self.waiting {
            Some(waiting) => waiting.push(request),
            None => self.attach(now_us, request),
        }
    }

    fn admit_all(&mut self, now_us: u64) {
        for request in self.waiting.as_mut().map(std::mem::take).unwrap_or_default() {
            self.attach(now_us, request);
        }
    }

    fn attach(&mut self, now_us: u64, request: AttachRequest) {
        match self.admit(now_us, &request) {
            Ok((session_id, welcome)) => {
                let relay = request.relay;
                self.sessions.attach(session_id, request, &welcome, self.slabs.notices());
                if !relay {
                    self.node.send(NodeMessage::InUse { space: self.number, sessions: true });
                }
            }
            Err(refusal) => self.sessions.refuse(&request, &refusal),
        }
        // The last engine may have left while the control thread still counted on this one, and a relay may have come after it.
        self.tell_left();
    }

    fn admit(&mut self, now_us: u64, request: &AttachRequest) -> Result<(SessionId, Welcome), Refusal> {
        if self.shutdown.is_some() {
            return Err(Refusal { status: Status::Daemon, text: "the daemon is shutting down".into() });
        }
        let mut welcome = Welcome::accept(request.number, request.protocol, request.limits)
            .map_err(|error| Refusal { status: Status::Internal, text: error.to_string() })?;
        let session_id = self.sessions.free(request.relay, request.shard)?;
        let lanes = request.limits.shape.lanes;
        let event = Event::Attach { session: session_id, shard: request.shard, lanes, frames: &request.frames };
        let result = self.core.handle(now_us, event);
        self.deliver();
        result.map_err(|error| Refusal { status: Status::Invalid, text: error.to_string() })?;
        if self.core.occupancy().published == 0 {
            welcome.other_identity.clone_from(&self.other_identity);
        }
        welcome.relay_socket = request.relay_socket.to_string_lossy().into_owned();
        Ok((session_id, welcome))
    }

    fn end_all(&mut self, now_us: u64) -> bool {
        let mut any = false;
        while let Some((session_id, end)) = self.sessions.next_to_end() {
            any = true;
            self.end(now_us, session_id, &end);
        }
        any
    }

    /// End a session, whose process may exit later; an entry without a live session is not changed.
    fn end(&mut self, now_us: u64, session_id: SessionId, end: &End) {
        // Closed before the core may reuse frames read by the session's loads: an agent discards copies that end after the hang-up.
        if !self.sessions.lose(session_id, end) {
            return;
        }
        self.tell(now_us, Event::SessionLost { session: session_id });
        if matches!(end, End::Left | End::Exited) {
            self.harmless(now_us, session_id);
        }
        self.tell_left();
    }

    /// Record that the peer of an entry does not access host memory any more.
    fn harmless(&mut self, now_us: u64, session_id: SessionId) {
        if self.sessions.set_exited(session_id) {
            self.tell(now_us, Event::SessionExited { session: session_id });
        }
    }

    /// Report that no engine is left, so that the space's host memory and its place can be used by others.
    fn tell_left(&mut self) {
        if let Some(attaches) = self.sessions.newly_left() {
            self.node.send(NodeMessage::InUse { space: self.number, sessions: false });
            self.control.send(Report::Left { space: self.number, attaches });
        }
    }

    /// Handle an event seen by the sleeper.
    pub fn woken(&mut self, now_us: u64, wake: Wake) {
        match wake {
            Wake::Process(session_id) => {
                if self.sessions.has_exited(session_id) {
                    self.end(now_us, session_id, &End::Exited);
                    // The session may have ended before.
                    self.harmless(now_us, session_id);
                }
            }
            Wake::Bell(session_id) => {
                if let Some(session) = self.sessions.session(session_id) {
                    session.bell.quiet();
                }
            }
            Wake::Socket(session_id) => {
                let Some(session) = self.sessions.session(session_id) else { return };
                if let Some(end) = session.look_at_socket().or_else(|| session.send_notices().err()) {
                    self.end(now_us, session_id, &end);
                }
            }
        }
    }

    /// Use a slab of host memory.
    pub fn granted(&mut self, now_us: u64, granted: Granted) {
        let (id, class, frames) = (granted.slab.slab, granted.slab.class as u8, granted.slab.frames);
        let notice = match self.slabs.add(granted) {
            Ok(notice) => notice,
            Err(error) => {
                tracing::error!("space {}: cannot use slab {id}: {error}", self.number);
                self.node.send(NodeMessage::Return { space: self.number, slab: id, memfd: None });
                return self.tell(now_us, Event::SlabRefused { class });
            }
        };
        self.sample.granted(id, frames);
        // Engines are notified before the first job that refers to it.
        self.sessions.notify(&notice);
        self.tell(now_us, Event::SlabGranted { class, slab: id, frames });
    }

    /// Return idle slabs because another space found no memory, or start emptying a slab of `cached` blocks. Sessions that left
    /// before the request are ended first: an engine started after another one expects to get its memory.
    pub fn give_back(&mut self, now_us: u64, cached: bool) {
        self.end_all(now_us);
        self.slabs.begin_reclaim();
        self.tell(now_us, Event::Reclaim { cached });
        while self.core.has_output() {
            let before = self.slabs.len();
            self.go_on(now_us);
            if self.slabs.len() == before {
                break; // the rest waits for other threads, not for buffer space
            }
        }
    }

    /// Restore the blocks of an earlier run, then handle the waiting attach requests. The core gets all blocks before any other
    /// event, because it returns slabs without known blocks. This takes about a second for some hundred thousand blocks; no session
    /// is served yet. `other_identity`: of a space that has only regions.
    pub fn adopt(&mut self, now_us: u64, regions: Vec<Region>, other_identity: String) {
        // A running space was used later than one that has only regions.
        if self.other_identity.is_empty() {
            self.other_identity = other_identity;
        }
        if self.waiting.is_none() {
            return tracing::error!("space {}: the node sent the regions of an earlier run twice", self.number);
        }
        let slabs = regions.len();
        for region in &regions {
            self.nvme.add(region);
            let (DiskGrant { slab, slots, disk, .. }, generation) = (region.grant, region.generation);
            self.tell(now_us, Event::DiskAdopted { slab, slots, disk: disk as u16, generation });
        }
        let mut restore = Restore::new(regions);
        while let Some((at, put)) = restore.next() {
            let (shard, hash, parent, planes) = (put.shard, put.hash, put.parent, put.present);
            self.tell(now_us, Event::Restored { at, shard, hash, parent, planes });
        }
        (self.stats.restored, self.stats.unreachable) = (restore.len() as u64, restore.unreachable() as u64);
        if slabs > 0 {
            let (number, blocks, unreachable) = (self.number, restore.len(), restore.unreachable());
            tracing::info!(
                "space {number}: recovered {blocks} blocks in {slabs} NVMe slabs of an earlier run; {unreachable} of them lost \
                 their ancestors and are dropped"
            );
        }
        self.admit_all(now_us);
        self.waiting = None;
    }

    /// Use a region of a disk.
    pub fn disk_granted(&mut self, now_us: u64, region: &Region) {
        self.nvme.region_answered();
        self.nvme.add(region);
        let (DiskGrant { slab, slots, disk, .. }, generation) = (region.grant, region.generation);
        self.tell(now_us, Event::DiskGranted { slab, slots, disk: disk as u16, generation });
    }

    /// Handle a refused request for a region.
    pub fn disk_refused(&mut self, now_us: u64) {
        self.nvme.region_answered();
        self.tell(now_us, Event::DiskRefused);
    }

    /// Handle a slab on a disk that is out of service: the core drops it, and the node gets it back when no transfer is in flight
    /// there.
    pub fn disk_gone(&mut self, now_us: u64, slab: u32) {
        if self.nvme.lose(slab) {
            self.tell(now_us, Event::DiskGone { slab });
        }
    }

    /// Set the write rate of the space: the node divides the disks' limits among spaces.
    pub fn limit_writes(&mut self, now_us: u64, nvme_bytes_per_day: u64) {
        self.nvme_bytes_per_day = Some(nvme_bytes_per_day);
        let config = self.core.config();
        let (policy, Limits { host_bytes_max, nvme_bytes_max, .. }) = (config.policy, config.limits);
        self.reconfigure(now_us, policy, (host_bytes_max, nvme_bytes_max));
    }

    /// Set the policy, except for the node's write rate, and the maxima of host memory and of NVMe space.
    pub fn reconfigure(&mut self, now_us: u64, policy: Policy, (host_bytes_max, nvme_bytes_max): (u64, u64)) {
        let nvme_bytes_per_day = self.nvme_bytes_per_day.unwrap_or(policy.nvme_bytes_per_day);
        let policy = Policy { nvme_bytes_per_day, ..policy };
        self.tell(now_us, Event::Reconfigure { policy, host_bytes_max, nvme_bytes_max });
    }

    /// Execute an operation, and answer it.
    pub fn operate(&mut self, now_us: u64, asked: Operate) {
        let before = self.core.counters().evicted_by_hand;
        let (hash, event) = asked.operation.event();
        if let Some(event) = event {
            self.tell(now_us, event);
        }
        let entry = hash.and_then(|hash| self.core.entry(hash));
        let absence = hash.and_then(|hash| self.core.absence(hash));
        let since = |at_us: u64| Duration::from_micros(now_us.saturating_sub(at_us));
        // The digits of a trace id are a number, those of a hash its bytes, lowest first.
        let lookup = hash.and_then(|hash| self.sessions.lookup_of(hash.swap_bytes()));
        let users = entry.iter().flat_map(|entry| entry.sessions.iter().copied());
        let sessions = users.filter_map(|id| self.sessions.number(id)).collect();
        // The operator may have stopped waiting.
        let _ = asked.answer.send(Operated {
            sessions,
            entry,
            absence: absence.map(|absence| (absence, since(absence.at_us))),
            lookup: lookup.map(|lookup| (lookup, since(lookup.at_us))),
            known: since(self.core.absences_known_since_us()),
            identity: Arc::clone(self.sessions.identity()),
            evicted: self.core.counters().evicted_by_hand - before,
            left: self.core.occupancy().published,
            pinned_max: self.core.pinned_max(),
        });
    }

    /// Write the flight recording.
    pub fn record(&self) {
        self.core.write();
    }

    fn status(&self) -> SpaceStatus {
        let core = &self.core;
        let attached = self.sessions.numbered().map(|(session_id, session, live)| {
            let (mut hits, stats) = (core.hits(session_id).unwrap_or_default(), live.stats);
            hits.load_us += stats.load_us;
            SessionStatus {
                session,
                hits,
                requests_in_flight: live.requests_in_flight() as u64,
                jobs_in_flight: live.jobs_in_flight() as u64,
                stats,
            }
        });
        let (request_times, job_times) = self.sessions.times();
        let mut hits = core.counters().hits;
        // All shards load the same blocks, at the same time.
        hits.load_us += request_times.load.sum_us / u64::from(core.config().shards);
        let attached: Vec<SessionStatus> = attached.collect();
        SpaceStatus {
            hits,
            space: self.number,
            name: self.name.clone(),
            domain: self.domain.clone(),
            sessions: attached.len(),
            waiting_for_exit: self.sessions.waiting_for_exit(),
            slabs: self.slabs.len(),
            slab_bytes: self.slabs.bytes(),
            disk_slabs: self.nvme.slabs(),
            transfers: self.nvme.in_flight(),
            occupancy: core.occupancy(),
            core: *core.counters(),
            eviction: core.eviction_advice(),
            budget: core.budget_report(),
            stats: self.stats,
            nvme: self.nvme.stats(),
            sample: self.sample.stats(),
            request_times,
            job_times,
            attached,
        }
    }

    /// Let the sleeper watch the sessions.
    pub fn watch(&mut self, sleeper: &mut Sleeper) {
        sleeper.watch(&mut self.sessions);
    }

    /// End the relays' sessions if nothing else keeps the space. Return true if there are any to end.
    pub fn dismiss_relays(&mut self) -> bool {
        self.sessions.is_without_engines() && self.core.is_blank() && self.sessions.end_relays()
    }

    /// Return how long the thread may sleep. Messages that wait for another thread's mailbox are sent, or tried again soon.
    pub fn timeout(&mut self, now_us: u64) -> Option<Duration> {
        let flushed = self.control.flush() & self.node.flush() & self.nvme.flush();
        if self.is_vacant()
            && let Some(attaches) = self.sessions.newly_vacant()
        {
            self.control.send(Report::Vacant { space: self.number, attaches });
        }
        let due_us = self.core.ask_due(now_us).into_iter().chain(self.shutdown.map(|shutdown| shutdown.until_us));
        let due = due_us.min().map(|due_us| until(now_us, due_us));
        due.into_iter().chain((!flushed).then_some(RETRY)).chain(self.figures.due()).min()
    }

    /// Let all that the space waits for wake its thread, which sleeps for at most `timeout`. Return false if some of it has come.
    pub fn announce(&mut self, timeout: Option<Duration>) -> bool {
        for (_, session) in self.sessions.sessions() {
            session.sleeper.announce();
        }
        self.nvme.bell().announce();
        self.nvme.log_bell().announce();
        self.figures.sleep(timeout);
        let quiet = self.nvme.is_quiet() && !self.figures.is_wanted();
        quiet && !self.sessions.sessions().any(|(_, session)| session.has_work())
    }

    /// The thread is awake.
    pub fn awake(&mut self) {
        self.figures.round();
        for (_, session) in self.sessions.sessions() {
            session.sleeper.awake();
        }
        self.nvme.bell().awake();
        self.nvme.bell().quiet();
        self.nvme.log_bell().awake();
        self.nvme.log_bell().quiet();
    }

    /// Begin the shutdown of the daemon: end when nothing is in flight, or at the deadline.
    pub fn drain(&mut self, now_us: u64, until_us: u64) {
        let retired = self.shutdown.is_some_and(|shutdown| shutdown.retired);
        self.shutdown = Some(Shutdown { until_us, retired });
        // Relays wait for events, which would take the whole grace period.
        self.sessions.end_relays();
        self.admit_all(now_us);
        self.tell(now_us, Event::Ending);
    }

    /// End the space unless engines use it. Return true if it can end now. Pending writes to NVMe are finished first.
    pub fn retire(&mut self, now_us: u64) -> bool {
        if self.is_vacant() {
            return true;
        }
        if !self.sessions.has_engines() {
            tracing::info!("space {}: retired: no engine uses it; its blocks on NVMe stay", self.number);
            self.sessions.end_relays();
            self.shutdown = Some(Shutdown { until_us: now_us + RETIRE_US, retired: true });
            self.tell(now_us, Event::Ending);
        }
        false
    }

    /// Return true if the space is empty: no session, no former session waiting for its process to exit, no block, no transfer in
    /// flight.
    fn is_vacant(&self) -> bool {
        self.sessions.is_empty() && self.core.is_vacant() && self.waiting.is_none() && self.nvme.is_settled()
    }

    /// Return how the space ends, if its shutdown is complete. Sessions end first, so that nothing more is read or written for
    /// them, then the transfers in flight. After the deadline, everything still in flight is logged.
    pub fn drained(&mut self, now_us: u64) -> Option<Finish> {
        let Shutdown { until_us, retired } = self.shutdown?;
        if self.core.is_admitting() && now_us < until_us {
            self.tell(now_us, Event::Tick);
            return None;
        }
        let in_flight: usize = self.sessions.sessions().map(|(_, session)| session.in_flight()).sum();
        if in_flight > 0 && now_us < until_us {
            return None;
        }
        if in_flight > 0 {
            tracing::warn!("space {}: {in_flight} requests and jobs did not end within the grace period", self.number);
        }
        while let Some(session_id) = self.sessions.live_id(0) {
            self.end(now_us, session_id, &End::Shutdown);
        }
        let (transfers, log_requests) = (self.nvme.in_flight(), self.nvme.log_requests_in_flight());
        if transfers + log_requests > 0 && now_us >= until_us {
            tracing::warn!(
                "space {}: {transfers} transfers and {log_requests} log requests did not end within the grace period",
                self.number
            );
        }
        // Blocks admitted at the end may wait for a region.
        let over = self.nvme.is_settled() || now_us >= until_us;
        over.then_some(if retired { Finish::Retired } else { Finish::Drained })
    }

    /// End the space: return its memory and its disk regions to the node, with those of its last messages.
    pub fn finish(&mut self, finish: Finish, messages: &Mailbox<SpaceMessage>, node: &Address<NodeMessage>) {
        // Regions granted at the last moment are returned too.
        while let Some(message) = messages.take() {
            if let SpaceMessage::DiskGranted(region) = message {
                self.nvme.add(&region);
            }
        }
        if finish != Finish::Drained && !self.nvme.settle(Instant::now() + SETTLE, &mut self.sample) {
            let transfers = self.nvme.in_flight();
            tracing::error!(
                "space {}: {transfers} transfers did not end within {SETTLE:?}: a disk does not respond. The space's NVMe regions \
                 stay unused until the daemon restarts",
                self.number
            );
        }
        // On failure the host thread has ended, so the process is ending.
        let _ = self.return_all(finish, node);
    }

    fn return_all(&mut self, finish: Finish, node: &Address<NodeMessage>) -> Result<(), Gone> {
        let space = self.number;
        // At a shutdown, agents may still be copying out of host memory, which lasts as long as their maps.
        if finish != Finish::Drained {
            for (slab, memfd) in self.slabs.take_all() {
                node.send(NodeMessage::Return { space, slab, memfd })?;
            }
        }
        if self.nvme.in_flight() > 0 {
            return Ok(());
        }
        if finish == Finish::Vacant {
            return self.nvme.take_slabs().try_for_each(|slab| node.send(NodeMessage::ReturnDisk { space, slab }));
        }
        // A retired space may return in this run and then finds its blocks; a later run reads them from the index log.
        let core = (finish == Finish::Retired).then_some(&*self.core);
        let mut left = self.nvme.leave(core).into_iter();
        left.try_for_each(|left| node.send(NodeMessage::UnclaimedDisk { space, left: Box::new(left) }))
    }
}

//! The core thread: work while there is any, spin a little, then sleep until an engine signals, a message arrives, a session ends
//! or a deadline is due.

use super::clock::{Clock, until};
use super::flight::Flight;
use super::integrity_sample::IntegritySample;
use super::messages::{Report, SpaceMessage};
use super::nvme::Nvme;
use super::restore::RestoreState;
use super::serve::{Space, ThreadStats};
use super::session_entries::SessionEntries;
use super::slabs::Slabs;
use super::status::SpaceStatus;
use crate::attach::{Refusal, refuse};
use crate::error::Error;
use crate::host::NodeMessage;
use crate::session::{End, JobTimes, Registry, RequestTimes};
use crate::space::sleep::{Sleeper, Wake};
use crate::trace::Tracer;
use kvtide_nvme::Disk;
use kvtide_rt::mail::{Address, Gone, Mailbox, RetryQueue, mailbox};
use kvtide_rt::published::{Published, Publisher, published};
use kvtide_tiering::ActionBuf;
use kvtide_tiering::Core;
use kvtide_tiering::api::{Event, SpaceConfig};
use kvtide_wire::lists::List;
use kvtide_wire::os::spin::{Spin, Turns, short_turns};
use kvtide_wire::request::Scratch;
use kvtide_wire::status::Status;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Mailbox size of a core thread.
const MESSAGES_MAX: usize = 256;
/// Interval at which a busy thread checks sockets, eventfds and processes.
const LOOK_US: u64 = 1_000;
/// Time slice requested for the thread when its core is contended: engines wait for it, and its rounds take microseconds.
const TURN: Duration = Duration::from_micros(100);
/// Maximum checks of the sockets before idle memory is returned: each check reports a limited number, and there may be more
/// sessions.
const LOOKS: usize = 16;
/// How long a retired space may continue to write pending blocks to NVMe.
const RETIRE_US: u64 = 10_000_000;
/// How long an ended space waits for its transfers; a disk that takes longer is stalled or out of service.
const SETTLE: Duration = Duration::from_secs(60);
/// Maximum sleep while another thread's mailbox is full.
const RETRY: Duration = Duration::from_millis(1);

/// Parameters of a core thread.
#[derive(Debug)]
pub(crate) struct Spec {
    /// Number of the space.
    pub number: u32,
    /// Name given by its first engine.
    pub name: String,
    /// Name of its domain.
    pub domain: String,
    /// Identity of the last engine of another space with this name that runs and has blocks; empty if there is none.
    pub other_identity: String,
    /// Geometry, limits, policy.
    pub config: SpaceConfig,
    /// Spin time before it sleeps.
    pub spin: Duration,
    /// Bytes of input that the flight recorder keeps; 0: off.
    pub recorder_bytes: u64,
    /// One page in this many is in the integrity sample; 0: none.
    pub sample_one_in: u32,
    /// Directory for recordings.
    pub dir: PathBuf,
    /// Address for its reports.
    pub control: Address<Report>,
    /// Address of the host thread, which grants host memory and disk regions.
    pub node: Address<NodeMessage>,
    /// First message to the host thread.
    pub join: NodeMessage,
    /// Disks of the NVMe tier, in the node's order.
    pub disks: Arc<[Disk]>,
    /// The daemon's sessions.
    pub registry: Registry,
    /// Makes spans of traced requests, if the daemon traces.
    pub tracer: Option<Tracer>,
}

/// A running core thread.
#[derive(Debug)]
pub(crate) struct SpaceThread {
    /// Address for messages to it.
    pub address: Address<SpaceMessage>,
    /// Its published status.
    pub figures: Published<SpaceStatus>,
    /// The thread.
    pub thread: JoinHandle<()>,
}

impl SpaceThread {
    /// Create the mailbox of a space that [`SpaceThread::spawn`] will start.
    pub fn mailbox() -> Result<(Address<SpaceMessage>, Mailbox<SpaceMessage>), Error> {
        mailbox(MESSAGES_MAX).map_err(|source| Error::Wire { action: "create a space's mailbox", source })
    }

    /// Start the thread.
    pub fn spawn(
        spec: Spec,
        address: Address<SpaceMessage>,
        messages: Mailbox<SpaceMessage>,
    ) -> Result<SpaceThread, Error> {
        let nvme = Nvme::new(spec.number, &spec.config, &spec.disks)?;
        let sleeper = Sleeper::new(&messages, nvme.bell(), nvme.log_bell())?;
        let name = format!("kvtide-space-{}", spec.number);
        let (publisher, figures) = published();
        let ring = address.waker();
        publisher.rung_by(move || ring.wake());
        let thread = std::thread::Builder::new().name(name);
        let thread = thread.spawn(move || begin(spec, &messages, nvme, sleeper, publisher));
        let thread = thread.map_err(|e| Error::system("start a space's core thread", e))?;
        Ok(SpaceThread { address, figures, thread })
    }
}

/// Reports the end of the thread to the control thread, also after a panic.
struct EndReport {
    number: u32,
    control: Address<Report>,
}

impl Drop for EndReport {
    fn drop(&mut self) {
        // On failure the control thread has ended too.
        let _ = self.control.send(Report::Ended { space: self.number });
    }
}

fn begin(spec: Spec, messages: &Mailbox<SpaceMessage>, nvme: Nvme, sleeper: Sleeper, figures: Publisher<SpaceStatus>) {
    let end_report = EndReport { number: spec.number, control: spec.control.clone() };
    let page_bytes = spec.config.planes.iter().map(|plane| plane.page_bytes).collect();
    let session_entries = SessionEntries::new(spec.config.limits.sessions_max, spec.config.shards);
    let core = match Core::new(spec.config.clone()) {
        Ok(core) => core,
        Err(error) => return refuse_all(messages, &spec, &error.to_string()),
    };
    tracing::info!("space {} ({}) of domain {} started", spec.number, spec.name, spec.domain);
    let node = spec.node.clone();
    let mut to_node = RetryQueue::new(spec.node);
    to_node.send(spec.join);
    let mut space = Space {
        number: spec.number,
        name: spec.name,
        domain: spec.domain,
        other_identity: spec.other_identity,
        identity: Arc::default(),
        core: Flight::new(core, spec.recorder_bytes, spec.dir.join(format!("space-{}.kvtrec", spec.number))),
        session_entries,
        clock: Clock::start(),
        now_us: 0,
        control: RetryQueue::new(spec.control),
        node: to_node,
        registry: spec.registry,
        slabs: Slabs::default(),
        restore_state: RestoreState::new(!spec.disks.is_empty()),
        regions_asked: 0,
        nvme,
        sample: IntegritySample::new(spec.sample_one_in),
        page_bytes,
        attaches: 0,
        told_vacant: 0,
        told_left: 0,
        nvme_bytes_per_day: None,
        drain_until_us: None,
        due_us: None,
        asked_us: 0,
        stats: ThreadStats::default(),
        figures,
        request_times: RequestTimes::default(),
        job_times: JobTimes::default(),
        actions: Space::actions(),
        list: List::default(),
        scratch: Scratch::new(),
        ending: Vec::new(),
        reclaim: None,
        returned_before: None,
        retiring: false,
        tracer: spec.tracer,
        new_sessions: Vec::new(),
    };
    let finish = space.run(messages, sleeper, spec.spin.as_micros() as u64);
    // Regions granted at the last moment are returned too.
    while let Some(message) = messages.take() {
        if let SpaceMessage::DiskGranted(region) = message {
            space.nvme.add(&region);
        }
    }
    if !matches!(finish, Finish::Drained) && !space.nvme.settle(Instant::now() + SETTLE, &mut space.sample) {
        let transfers = space.nvme.in_flight();
        tracing::error!(
            "space {}: {transfers} transfers did not end within {SETTLE:?}: a disk does not respond. The space's NVMe regions stay \
             unused until the daemon restarts",
            space.number
        );
    }
    match finish {
        Finish::Vacant => {
            space.return_slabs(&node);
            space.give_up_regions(|space, slab| node.send(NodeMessage::ReturnDisk { space, slab }));
        }
        // Agents may still be copying out of host memory, which lasts as long as their maps. Blocks recorded on NVMe are left for
        // the next run.
        Finish::Drained => space.leave_regions(&node, false),
        Finish::Retired => {
            space.return_slabs(&node);
            space.leave_regions(&node, true);
        }
    }
    tracing::info!("space {} stopped", space.number);
    drop(space); // sessions are closed before the control thread gets the report
    drop(end_report);
}

/// Refuse all waiting attach requests and end, because the core rejects the configuration.
fn refuse_all(messages: &Mailbox<SpaceMessage>, spec: &Spec, why: &str) {
    tracing::error!("space {}: cannot start: {why}", spec.number);
    let refusal = Refusal { status: Status::Limit, text: format!("cannot create the space: {why}") };
    // A space is started for an attach request, which follows at once.
    let mut next = messages.wait();
    while let Some(message) = next {
        if let SpaceMessage::Attach(request) = message {
            refuse(&spec.registry, &request.socket, request.peer, &refusal);
        }
        next = messages.take();
    }
}

/// Reason why a core thread ends.
enum Finish {
    /// The space is empty.
    Vacant,
    /// The daemon shuts down.
    Drained,
    /// The space is retired for another one.
    Retired,
}

impl Space {
    fn run(&mut self, messages: &Mailbox<SpaceMessage>, mut sleeper: Sleeper, spin_us: u64) -> Finish {
        if let Err(error) = short_turns(TURN) {
            tracing::warn!("space {}: cannot set a short time slice for the core thread: {error}", self.number);
        }
        let (mut worked_us, mut looked_us) = (0, 0);
        let mut turns = Turns::begin();
        let mut spin = Spin::new(Duration::from_micros(spin_us));
        loop {
            self.figures.round();
            let now_us = self.clock.now_us();
            let mut worked = self.round(now_us);
            while let Some(message) = messages.take() {
                worked = true;
                if self.read(now_us, message) {
                    return Finish::Vacant;
                }
            }
            // Checked in every round: an engine that keeps sending requests must not delay the end.
            if self.has_drained(now_us) {
                return if self.retiring { Finish::Retired } else { Finish::Drained };
            }
            sleeper.watch(&mut self.session_entries, &mut self.new_sessions);
            if let Some(cached) = self.reclaim.take() {
                worked = true;
                self.give_back(now_us, &mut sleeper, cached);
            }
            self.answer_reclaim();
            if worked {
                worked_us = now_us;
                self.figures.changed();
            }
            self.publish();
            if worked || spin.pause(Duration::from_micros(now_us.saturating_sub(worked_us))) {
                if now_us - looked_us >= LOOK_US {
                    looked_us = now_us;
                    sleeper.look(Some(Duration::ZERO));
                    self.handle(now_us, &mut sleeper);
                }
                turns.pass();
                continue;
            }
            self.rest(messages, &mut sleeper, now_us);
            turns = Turns::begin();
        }
    }

    /// End the relays' sessions if nothing else keeps the space. Return true if there are any to end.
    fn dismiss_relays(&mut self) -> bool {
        let keeps = !self.session_entries.is_without_engines() || !self.core.is_blank();
        if keeps || self.session_entries.relays().next().is_none() {
            return false;
        }
        self.end_relays();
        true
    }

    /// Sleep, unless work arrives at the last moment.
    fn rest(&mut self, messages: &Mailbox<SpaceMessage>, sleeper: &mut Sleeper, now_us: u64) {
        if self.dismiss_relays() {
            return; // the next round ends them
        }
        let flushed = self.control.flush() & self.node.flush() & self.nvme.flush();
        self.tell_vacant();
        self.ask_due(now_us);
        let due_us = self.due_us.into_iter().chain(self.drain_until_us).min();
        let mut timeout = due_us.map(|due_us| until(now_us, due_us));
        if !flushed {
            timeout = Some(timeout.map_or(RETRY, |timeout| timeout.min(RETRY)));
        }
        let timeout = timeout.into_iter().chain(self.figures.due()).min();
        for (_, session) in self.session_entries.sessions() {
            session.sleeper.announce();
        }
        messages.announce();
        self.nvme.bell().announce();
        self.nvme.log_bell().announce();
        self.figures.sleep(timeout);
        let quiet = messages.is_empty() && self.nvme.is_quiet() && !self.figures.is_wanted();
        let idle = quiet && !self.session_entries.sessions().any(|(_, session)| session.has_work());
        if idle {
            sleeper.look(timeout);
        }
        self.figures.round();
        for (_, session) in self.session_entries.sessions() {
            session.sleeper.awake();
        }
        messages.awake();
        messages.quiet();
        self.nvme.bell().awake();
        self.nvme.bell().quiet();
        self.nvme.log_bell().awake();
        self.nvme.log_bell().quiet();
        let now_us = self.clock.now_us();
        self.handle(now_us, sleeper);
    }

    /// Handle the events seen by the sleeper.
    fn handle(&mut self, now_us: u64, sleeper: &mut Sleeper) {
        while let Some(wake) = sleeper.next() {
            let (session_id, end) = match wake {
                Wake::Process(session_id) => {
                    if self.session_entries.peer(session_id).is_some_and(|peer| peer.has_exited()) {
                        self.exited(now_us, session_id);
                    }
                    continue;
                }
                Wake::Bell(session_id) => {
                    if let Some(session) = self.session_entries.session(session_id) {
                        session.bell.quiet();
                    }
                    continue;
                }
                Wake::Socket(session_id) => {
                    let Some(session) = self.session_entries.session(session_id) else { continue };
                    let found = session.look_at_socket().or_else(|| session.send_notices().err());
                    let Some(end) = found else { continue };
                    (session_id, end)
                }
            };
            self.end(now_us, session_id, &end);
        }
    }

    /// Return idle slabs because another space found no memory, or start emptying a slab of `cached` blocks. Sessions that left
    /// before the request are ended first: an engine started after another one expects to get its memory.
    fn give_back(&mut self, now_us: u64, sleeper: &mut Sleeper, cached: bool) {
        for _ in 0..LOOKS {
            sleeper.look(Some(Duration::ZERO));
            if !sleeper.has_seen() {
                break;
            }
            self.handle(now_us, sleeper);
        }
        self.end_all(now_us);
        self.returned_before = Some(self.slabs.returned);
        self.tell(now_us, Event::Reclaim { cached });
        while self.core.has_output() {
            let before = self.slabs.len();
            self.go_on(now_us);
            if self.slabs.len() == before {
                break; // the rest waits for other threads, not for buffer space
            }
        }
    }

    /// Answer the node's request once it has been handled.
    fn answer_reclaim(&mut self) {
        if let Some(before) = self.returned_before.filter(|_| !self.core.is_reclaiming()) {
            self.returned_before = None;
            let gave = self.slabs.returned > before;
            self.node.send(NodeMessage::Reclaimed { space: self.number, gave });
        }
    }

    /// End the space unless engines use it. Return true if it can end now. Pending writes to NVMe are finished first.
    pub fn retire(&mut self, now_us: u64) -> bool {
        if self.is_vacant() {
            return true;
        }
        if !self.session_entries.has_engines() {
            tracing::info!("space {}: retired: no engine uses it; its blocks on NVMe stay", self.number);
            self.end_relays();
            self.retiring = true;
            self.drain_until_us = Some(now_us + RETIRE_US);
            self.tell(now_us, Event::Ending);
        }
        false
    }

    /// Return true if the shutdown of the space is complete. Sessions end first, so that nothing more is read or written for them,
    /// then the transfers in flight. After the deadline, everything still in flight is logged.
    fn has_drained(&mut self, now_us: u64) -> bool {
        let Some(until_us) = self.drain_until_us else { return false };
        if self.core.is_admitting() && now_us < until_us {
            self.tell(now_us, Event::Tick);
            return false;
        }
        let in_flight: usize = self.session_entries.sessions().map(|(_, session)| session.in_flight()).sum();
        if in_flight > 0 && now_us < until_us {
            return false;
        }
        if in_flight > 0 {
            tracing::warn!("space {}: {in_flight} requests and jobs did not end within the grace period", self.number);
        }
        while let Some(session_id) = self.session_entries.live_id(0) {
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
        transfers + log_requests == 0 && self.regions_asked == 0 || now_us >= until_us
    }

    /// Return all slabs with their memory; no copies or transfers are in flight.
    fn return_slabs(&mut self, node: &Address<NodeMessage>) {
        for (slab, memfd) in self.slabs.take_all() {
            if node.send(NodeMessage::Return { space: self.number, slab, memfd }).is_err() {
                return; // the host thread has ended, so the process is ending
            }
        }
    }

    /// Give up all disk regions, unless transfers may still be in flight.
    fn give_up_regions(&mut self, give: impl Fn(u32, u32) -> Result<(), Gone>) {
        if self.nvme.in_flight() > 0 {
            return;
        }
        for slab in self.nvme.take_slabs() {
            if give(self.number, slab).is_err() {
                return; // the host thread has ended, so the process is ending
            }
        }
    }

    /// Return the disk regions with their recorded blocks, unless transfers are in flight. `again`: the space may return in this
    /// run and then finds its blocks; a later run reads them from the index log.
    fn leave_regions(&mut self, node: &Address<NodeMessage>, again: bool) {
        if self.nvme.in_flight() > 0 {
            return;
        }
        let core = again.then_some(&*self.core);
        for left in self.nvme.leave(core) {
            if node.send(NodeMessage::UnclaimedDisk { space: self.number, left: Box::new(left) }).is_err() {
                return; // the host thread has ended, so the process is ending
            }
        }
    }

    /// Return true if the space is empty: no session, no former session waiting for its process to exit, no block, no transfer in
    /// flight.
    pub fn is_vacant(&self) -> bool {
        let answered = self.restore_state.is_over() && self.regions_asked == 0;
        let settled = answered && self.nvme.in_flight() == 0 && self.nvme.log_requests_in_flight() == 0;
        self.session_entries.is_empty() && self.core.is_vacant() && settled
    }

    fn tell_vacant(&mut self) {
        if self.told_vacant < self.attaches && self.is_vacant() {
            self.told_vacant = self.attaches;
            self.control.send(Report::Vacant { space: self.number, attaches: self.attaches });
        }
    }

    fn actions() -> ActionBuf {
        ActionBuf::new(super::serve::ACTIONS, super::serve::WORDS)
    }
}

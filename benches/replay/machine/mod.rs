//! The shipped core with a simulated engine of one session, simulated links and simulated time.
//!
//! Loads use one link, stores another (the bus is bidirectional), NVMe transfers a third. A job that reuses a frame starts once the
//! frame's page is out of use, as with a real agent. There are no failures here; the simulator (`sim/`) covers failing devices. The
//! replays drive the machine; it does not depend on traces.

mod agent;
mod link;
mod space;

pub use space::{SCAN_FRAMES, space};

use super::ReplayError;
use agent::{Agent, Direction};
use kvtide_fake::Node;
use kvtide_tiering::api::{Action, Event, IoClass, IoKind, Request, SpaceConfig, Status};
use kvtide_tiering::{ActionBuf, Core, LIST_MAX};
use link::Link;
use std::collections::VecDeque;

/// Start of the core's time in microseconds: 0 is not a valid time.
const BEGIN_US: u64 = 1_000_000;
/// Slots of one NVMe grant.
const SLAB_SLOTS: u32 = 1 << 10;

/// Bandwidths in gigabytes (10^9) a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidths {
    /// Between tier 0 and host memory, each direction.
    pub host: f64,
    /// Between host memory and NVMe, both directions together.
    pub nvme: f64,
}

/// Maximum number of events while one request waits; more indicates an endless loop in the core.
const ROUNDS_MAX: u32 = 1 << 22;
/// Events more than this many nanoseconds (one hour) ahead are not waited for.
const STILL_NS: u64 = 3_600_000_000_000;

/// A job that completes at once.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Job(u32, Status),
    LogRequest(u32),
    Host(u8),
    Disk,
}

/// The core and its simulated environment.
pub struct Machine {
    /// The shipped core.
    pub core: Core,
    /// Tier 0 of the engine.
    pub agent: Agent,
    buf: ActionBuf,
    now_ns: u64,
    page_bytes: u64,
    loads: Link,
    stores: Link,
    nvme: Link,
    ended: VecDeque<Ended>,
    answer: Option<(Status, u64)>,
    list: Vec<u32>,
    node: Node,
    disk_slots: u32,
    disk_slabs: u32,
}

impl Machine {
    /// Create a machine for a space with pages of one size. `frames`: of tier 0.
    pub fn new(config: SpaceConfig, frames: u32, bandwidths: Bandwidths) -> Result<Machine, ReplayError> {
        let page_bytes = config.planes.first().map_or(1, |plane| u64::from(plane.page_bytes));
        let planes = config.planes.len() as u64;
        let host_frames = u32::try_from(config.limits.host_bytes_max / page_bytes).unwrap_or(u32::MAX);
        let mut machine = Machine {
            agent: Agent::new(config.limits.blocks_max, config.planes.len() as u16),
            buf: ActionBuf::new(256, 1 << 14),
            now_ns: BEGIN_US * 1000,
            page_bytes,
            loads: Link::new(bandwidths.host),
            stores: Link::new(bandwidths.host),
            nvme: Link::new(bandwidths.nvme),
            ended: VecDeque::new(),
            answer: None,
            list: Vec::with_capacity(LIST_MAX),
            // It grants all host memory at once.
            node: Node::new(vec![host_frames], host_frames),
            disk_slots: u32::try_from(config.limits.nvme_bytes_max / (page_bytes * planes)).unwrap_or(u32::MAX),
            disk_slabs: 0,
            core: Core::new(config)?,
        };
        machine.event(Event::Attach { session: 0, shard: 0, lanes: 1, frames: &[frames] })?;
        Ok(machine)
    }

    /// Return the time in nanoseconds since the begin of the replay.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns - BEGIN_US * 1000
    }

    /// Advance the time, process all events until then, and run the core's housekeeping.
    pub fn advance(&mut self, until_ns: u64) -> Result<(), ReplayError> {
        self.pass(until_ns)?;
        self.event(Event::Tick)
    }

    /// Advance the time and process all events until then.
    pub fn pass(&mut self, until_ns: u64) -> Result<(), ReplayError> {
        let until = until_ns + BEGIN_US * 1000;
        while let Some(at) = self.next_end().filter(|&at| at <= until) {
            self.end_next(at)?;
        }
        self.now_ns = self.now_ns.max(until);
        Ok(())
    }

    /// Advance to the next event. Return false if nothing is in progress.
    pub fn wait(&mut self) -> Result<bool, ReplayError> {
        let Some(at) = self.next_end() else { return Ok(false) };
        self.end_next(at)?;
        Ok(true)
    }

    /// Advance to the next event, unless it is a deadline that only a stuck replay would reach. Return false if nothing is in
    /// progress.
    pub fn wait_for_moves(&mut self) -> Result<bool, ReplayError> {
        let Some(at) = self.next_end().filter(|&at| at < self.now_ns + STILL_NS) else { return Ok(false) };
        self.end_next(at)?;
        Ok(true)
    }

    /// Send a request without waiting for its [`Machine::answer`]. The previous request must have been answered.
    pub fn send(&mut self, request: Request<'_>) -> Result<(), ReplayError> {
        self.answer = None;
        self.event(Event::Request { session: 0, channel: 0, tag: 0, timeout_us: 0, request })
    }

    /// Return the reply to the last request, once available.
    #[must_use]
    pub fn answer(&self) -> Option<(Status, u64)> {
        self.answer
    }

    /// Send a request and advance the time until it is answered.
    pub fn ask(&mut self, request: Request<'_>) -> Result<(Status, u64), ReplayError> {
        self.send(request)?;
        for _ in 0..ROUNDS_MAX {
            if let Some(answer) = self.answer {
                return Ok(answer);
            }
            // A waiting lane applies changes of the page table.
            self.agent.applied();
            self.start_jobs();
            self.drain()?;
            if self.answer.is_none() && !self.wait()? {
                break;
            }
        }
        Err(ReplayError::Odd(format!("nothing is in progress, but {request:?} has no reply")))
    }

    /// Send a request that must succeed, and return its value.
    pub fn must(&mut self, request: Request<'_>) -> Result<u64, ReplayError> {
        match self.ask(request)? {
            (Status::Ok, value) => Ok(value),
            (status, _) => Err(ReplayError::Odd(format!("{request:?} ends with {status:?}"))),
        }
    }

    /// Return the list of the last reply.
    #[must_use]
    pub fn list(&self) -> &[u32] {
        &self.list
    }

    /// Advance the time until nothing is in progress, except deadlines of the core.
    pub fn settle(&mut self) -> Result<(), ReplayError> {
        while let Some(at) = self.next_link_end() {
            self.end_next(at)?;
        }
        Ok(())
    }

    /// Move the engine to a boundary: pages before this position of its lane are out of use.
    pub fn at(&mut self, position: Option<u64>) -> Result<(), ReplayError> {
        self.agent.at(position);
        self.start_jobs();
        self.drain()
    }

    fn next_link_end(&self) -> Option<u64> {
        [&self.loads, &self.stores, &self.nvme].into_iter().filter_map(Link::next_end).min()
    }

    fn next_end(&self) -> Option<u64> {
        let deadline = self.core.next_deadline().map(|us| us.saturating_mul(1000));
        self.next_link_end().into_iter().chain(deadline).min()
    }

    /// Process all events at a time.
    fn end_next(&mut self, at: u64) -> Result<(), ReplayError> {
        self.now_ns = self.now_ns.max(at);
        let copies = [&mut self.loads, &mut self.stores];
        let job = copies.into_iter().find(|link| link.next_end() == Some(at)).and_then(Link::end);
        if let Some(job) = job {
            self.agent.ended(job, self.now_ns - BEGIN_US * 1000);
            self.tell(Event::JobDone { session: 0, job, status: Status::Ok })?;
            self.start_jobs();
            return self.drain();
        }
        if self.nvme.next_end() == Some(at)
            && let Some(id) = self.nvme.end()
        {
            self.tell(Event::IoDone { id, status: Status::Ok, bad: &[] })?;
            return self.drain();
        }
        self.event(Event::Tick)
    }

    /// Pass an event to the core and execute its actions until there are none.
    pub fn event(&mut self, event: Event<'_>) -> Result<(), ReplayError> {
        self.tell(event)?;
        self.drain()
    }

    /// Pass an event to the core without executing its actions; see [`Machine::drain`].
    pub fn tell(&mut self, event: Event<'_>) -> Result<(), ReplayError> {
        Ok(self.core.handle(self.now_ns / 1000, event, &mut self.buf)?)
    }

    /// Execute the core's actions until there are none.
    pub fn drain(&mut self) -> Result<(), ReplayError> {
        loop {
            self.take();
            let Some(ended) = self.ended.pop_front() else {
                if !self.core.has_output() {
                    return Ok(());
                }
                self.core.poll(self.now_ns / 1000, &mut self.buf);
                continue;
            };
            let event = match ended {
                Ended::Job(job, status) => Event::JobDone { session: 0, job, status },
                Ended::LogRequest(id) => Event::LogDone { id, status: Status::Ok },
                Ended::Host(class) => self.node.grant(class),
                Ended::Disk => self.grant_disk(),
            };
            self.tell(event)?;
        }
    }

    fn take(&mut self) {
        let (mut jobs, now_ns) = (false, self.now_ns());
        for &action in self.buf.actions() {
            match action {
                Action::Job { id, job, .. } => {
                    self.agent.take(id, job, now_ns);
                    jobs = true;
                }
                Action::Io { id, kind, class, list, .. } => {
                    let bytes = u64::from(list.1 / 3) * self.page_bytes;
                    let class = if kind == IoKind::Write { IoClass::WriteBack } else { class };
                    self.nvme.push(self.now_ns, class_of(class), id, bytes);
                }
                Action::Urge { id, class } => self.nvme.urge(class_of(class), id),
                Action::Record { id, .. } | Action::Erase { id, .. } | Action::Flush { id } => {
                    self.ended.push_back(Ended::LogRequest(id));
                }
                Action::NeedSlab { class } => self.ended.push_back(Ended::Host(class)),
                Action::NeedDisk { .. } => self.ended.push_back(Ended::Disk),
                Action::Complete { status, value, list, .. } => {
                    self.answer = Some((status, value));
                    self.list.clear();
                    self.list.extend_from_slice(self.buf.list(list));
                }
                Action::ReturnSlab { .. } | Action::SessionGone { .. } | Action::EndSession { .. } => {}
                // Its slots are not granted again: a wholly free slab while others are needed is rare in a full tier.
                Action::ReturnDisk { .. } => {}
            }
        }
        self.buf.clear();
        if jobs {
            self.start_jobs();
        }
    }

    fn start_jobs(&mut self) {
        while let Some((id, canceled)) = self.agent.cancels.pop_front() {
            // A started job continues.
            if self.agent.withdraw(canceled) {
                self.ended.push_back(Ended::Job(canceled, Status::Canceled));
            }
            self.ended.push_back(Ended::Job(id, Status::Ok));
        }
        // A job waits at the agent until its link is free; the page that it replaces remains visible until then.
        while let Some((id, direction)) =
            self.agent.start(self.loads.next_end().is_none(), self.stores.next_end().is_none())
        {
            match direction {
                Direction::None => {
                    let now_ns = self.now_ns();
                    self.agent.ended(id, now_ns);
                    self.ended.push_back(Ended::Job(id, Status::Ok));
                }
                Direction::Load => self.loads.push(self.now_ns, 0, id, self.page_bytes),
                Direction::Store => self.stores.push(self.now_ns, 0, id, self.page_bytes),
            }
        }
    }

    fn grant_disk(&mut self) -> Event<'static> {
        let slots = self.disk_slots.min(SLAB_SLOTS);
        self.disk_slots -= slots;
        self.disk_slabs += 1;
        match slots {
            0 => Event::DiskRefused,
            _ => Event::DiskGranted { slab: self.disk_slabs - 1, slots, disk: 0, generation: 0 },
        }
    }
}

fn class_of(class: IoClass) -> usize {
    match class {
        IoClass::Demand => 0,
        IoClass::Prefetch => 1,
        IoClass::WriteBack => 2,
    }
}

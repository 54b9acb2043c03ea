//! Shared state of a world: time, randomness, memory, devices, and records.

use crate::base::{Queue, Rng, Trace};
use crate::coverage::{Coverage, Met};
use crate::disk::{DiskFaults, Ledger, Regions};
use crate::failure::Caught;
use crate::geometry::Geometry;
use crate::memory::{Arenas, CopyFault, CopyId, Devices};
use crate::model::Library;
use crate::mutant::DaemonMutant;
use std::collections::BTreeSet;

/// A wrong action of the system under test.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// Kind.
    pub caught: Caught,
    /// Observation.
    pub detail: String,
}

/// Result of every check.
pub type Check<T = ()> = Result<T, Wrong>;

/// Return a finding.
pub fn wrong<T>(caught: Caught, detail: impl Into<String>) -> Check<T> {
    Err(Wrong { caught, detail: detail.into() })
}

/// Events of a world. Sessions are indices that are never reused; an event for one that is gone does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ev {
    /// The engine thread of a channel acts.
    Channel {
        /// Session.
        session: usize,
        /// Channel.
        channel: usize,
    },
    /// The engine thread of a lane acts.
    Lane {
        /// Session.
        session: usize,
        /// Lane.
        lane: usize,
    },
    /// The daemon reads the rings of a session.
    Drain {
        /// Session.
        session: usize,
    },
    /// The agent reads its job ring.
    CopyLoop {
        /// Session.
        session: usize,
    },
    /// The engine reads a completion ring.
    Answers {
        /// Session.
        session: usize,
        /// Channel.
        channel: usize,
    },
    /// A device accesses memory.
    Copy {
        /// Copy.
        copy: CopyId,
    },
    /// The daemon's clock ticks.
    Tick {
        /// Number of the daemon.
        epoch: u32,
    },
    /// The node answers a request for a slab.
    Slab {
        /// Number of the daemon that sent the request.
        epoch: u32,
        /// Size class.
        class: u8,
    },
    /// The node answers a request for NVMe space.
    Disk {
        /// Number of the daemon that sent the request.
        epoch: u32,
    },
    /// The daemon receives the end of a transfer.
    IoDone {
        /// Number of the daemon that started it.
        epoch: u32,
        /// The transfer.
        id: u32,
    },
    /// The daemon receives the end of a log request.
    LogDone {
        /// Number of the daemon that sent it.
        epoch: u32,
        /// Log request.
        id: u32,
    },
    /// An engine process dies, or only its connection.
    Die {
        /// Session.
        session: usize,
    },
    /// The daemon detects that a session's connection is gone.
    Lost {
        /// Session.
        session: usize,
    },
    /// An engine's process has exited completely.
    Exit {
        /// Session.
        session: usize,
    },
    /// An engine attaches in place of one that is gone.
    Attach {
        /// Replica.
        replica: usize,
        /// Shard.
        shard: u16,
    },
    /// An engine that outlived its daemon attaches to the next one.
    Reattach {
        /// Session.
        session: usize,
    },
    /// The daemon dies.
    DaemonDies,
    /// Another daemon takes its place.
    DaemonStarts,
    /// The auditor checks for hangs and broken invariants.
    Audit,
}

/// Fault rates of this episode, per thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A copy fails or falls short.
    pub copy: u64,
    /// A copy is late.
    pub late: u64,
    /// A copy never ends.
    pub endless: u64,
    /// An invalid request instead of an operation.
    pub nonsense: u64,
    /// A request is cancelled.
    pub cancel: u64,
    /// A request has a deadline that is likely to pass.
    pub hurry: u64,
    /// The node refuses a slab.
    pub refuse: u64,
    /// A peer invents the end of a job, in ten thousand operations.
    pub babble: u64,
    /// A session dies, in ten thousand operations.
    pub die: u64,
    /// The daemon dies, in ten thousand operations.
    pub daemon: u64,
    /// The operator changes the policy, per thousand audits.
    pub reload: u64,
    /// Faults of the disk.
    pub disk: DiskFaults,
}

impl Faults {
    /// Draw the faults of an episode: none in a third of them, so that any error there is a finding.
    pub fn draw(rng: &mut Rng) -> Faults {
        let mut some = |likely: u64, most: u64| if rng.chance(likely) { rng.between(1, most) } else { 0 };
        if some(330, 1) == 1 {
            let late = some(300, 50);
            let disk = DiskFaults { late: some(300, 50), ..DiskFaults::default() };
            return Faults { late, disk, reload: some(300, 100), ..Faults::default() };
        }
        let mut faults = Faults {
            copy: some(500, 60),
            late: some(500, 50),
            endless: some(150, 4),
            nonsense: some(500, 60),
            cancel: some(500, 150),
            hurry: some(400, 200),
            refuse: some(300, 500),
            babble: some(150, 20),
            die: some(500, 60),
            daemon: some(300, 25),
            reload: some(300, 100),
            disk: DiskFaults::default(),
        };
        faults.disk = DiskFaults::draw(rng);
        faults
    }

    /// Return whether nothing can be lost and nothing can time out except by the system's own fault.
    #[must_use]
    pub fn none(&self) -> bool {
        let others = self.cancel + self.hurry + self.refuse + self.die + self.daemon + self.babble;
        self.copy + self.endless + others == 0 && self.disk.none()
    }
}

/// Shared state.
pub struct Context {
    /// Randomness.
    pub rng: Rng,
    /// Time and pending events.
    pub queue: Queue<Ev>,
    /// Hash of the events.
    pub trace: Trace,
    /// Counts of the events.
    pub coverage: Coverage,
    /// Memory.
    pub arenas: Arenas,
    /// Copies in flight.
    pub devices: Devices,
    /// Regions of the disk.
    pub regions: Regions,
    /// Damage and losses of contents on the disk.
    pub ledger: Ledger,
    /// The space.
    pub geometry: Geometry,
    /// Knowledge shared by engines.
    pub library: Library,
    /// Faults.
    pub faults: Faults,
    /// The enabled fault of the daemon, if any.
    pub daemon_mutant: Option<DaemonMutant>,
    /// Sessions of killed processes.
    pub dead: BTreeSet<usize>,
    /// Requests and steps so far.
    pub ops: u64,
    /// Events so far.
    pub events: u64,
}

impl Context {
    /// Return the simulated time.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.queue.now_us()
    }

    /// Record an event as text, if text is kept.
    pub fn say(&mut self, text: impl FnOnce() -> String) {
        let now = self.queue.now_us();
        self.trace.say(now, text);
    }

    /// Return the delay of a message between two processes.
    pub fn hop(&mut self) -> u64 {
        self.rng.delay(0, 4, 20)
    }

    /// Draw the fault of the next copy, if any.
    pub fn copy_fault(&mut self) -> Option<CopyFault> {
        let (fault, met) = if self.rng.chance(self.faults.copy) {
            match self.rng.chance(500) {
                true => (CopyFault::Failed, Met::TransferFailed),
                false => (CopyFault::Short, Met::TransferShort),
            }
        } else if self.rng.chance(self.faults.endless) {
            (CopyFault::Endless, Met::TransferEndless)
        } else if self.rng.chance(self.faults.late) {
            (CopyFault::Late, Met::TransferLate)
        } else {
            return None;
        };
        self.coverage.met(met);
        Some(fault)
    }
}

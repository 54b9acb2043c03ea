//! A world: one space, its daemon, its engines, and time.
//!
//! Everything is an event of the queue, handled by the part that it concerns; parts communicate only through simulated rings. The
//! core, the encoding and the agent's protocol run as shipped. Their environment is simulated: processes, rings, devices,
//! clocks, the node, and the engines' own code.

mod actions;
mod answers;
mod attention;
mod blocks;
mod context;
mod copy_loop;
mod daemon;
mod disk;
mod guarantee;
mod life;
mod log_requests;
mod nonsense;
mod ops;
mod pins;
mod reader;
mod reattach;
mod requests;
mod resize;
mod session;
mod steps;
mod threads;

pub use context::{Check, Context, Ev, Faults, Wrong};

use crate::base::{Queue, Rng, Trace, mix};
use crate::coverage::Coverage;
use crate::disk::{Ledger, Regions};
use crate::episode::Report;
use crate::geometry::Geometry;
use crate::memory::{Arenas, Devices};
use crate::model::Library;
use crate::mutant::DaemonMutant;
use daemon::Daemon;
use life::Phase;
use session::Session;

/// Simulated microseconds between two audits.
const AUDIT_US: u64 = 5_000;

/// One episode's world.
pub struct World {
    cx: Context,
    daemon: Option<Daemon>,
    sessions: Vec<Session>,
    ops_max: u64,
    daemons: u32,
    phase: Phase,
}

impl World {
    /// Create the world of `seed`, before its first event, with a faulty daemon if a fault is given.
    #[must_use]
    pub fn new(seed: u64, verbose: bool, daemon_mutant: Option<DaemonMutant>) -> World {
        let mut rng = Rng::new(seed);
        let geometry = Geometry::draw(&mut rng);
        let faults = Faults::draw(&mut rng);
        let library = Library::new(rng.bits(), geometry.config.shards);
        let ops_max = rng.between(300, 3000);
        let mut cx = Context {
            rng,
            queue: Queue::default(),
            trace: Trace::new(verbose),
            coverage: Coverage::default(),
            arenas: Arenas::default(),
            devices: Devices::default(),
            regions: Regions::default(),
            ledger: Ledger::default(),
            geometry,
            library,
            faults,
            daemon_mutant,
            dead: std::collections::BTreeSet::new(),
            ops: 0,
            events: 0,
        };
        let text = format!("{:?} {:?}", cx.geometry, cx.faults);
        cx.say(|| text);
        World { cx, daemon: None, sessions: Vec::new(), ops_max, daemons: 0, phase: Phase::Running }
    }

    /// Run until the episode's operations are done and all requests in flight have ended.
    ///
    /// # Errors
    /// The first failure.
    pub fn run(&mut self) -> Check {
        self.begin()?;
        while !self.over() {
            let Some(event) = self.cx.queue.pop() else { break };
            self.cx.events += 1;
            self.event(event)?;
            // In a replay the report must name the event that broke an invariant, not the audit that detected it.
            if let Some(daemon) = self.daemon.as_ref().filter(|_| self.cx.trace.is_verbose()) {
                daemon.check()?;
            }
        }
        self.finish()
    }

    /// Return the report so far.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            ops: self.cx.ops,
            events: self.cx.events,
            hash: mix(self.cx.trace.hash(), self.daemon.as_ref().map_or(0, |daemon| daemon.core.trace().hash())),
            coverage: self.cx.coverage.clone(),
        }
    }

    /// Return the shared state, with the last events as text.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.cx
    }

    /// Return the tables of the daemon's core as text.
    #[must_use]
    pub fn core(&self) -> Option<String> {
        self.daemon.as_ref().map(|daemon| format!("{:#?}", daemon.core))
    }

    fn event(&mut self, event: Ev) -> Check {
        let World { cx, daemon, sessions, .. } = self;
        match event {
            Ev::Channel { session, channel } => sessions[session].channel_event(cx, channel),
            Ev::Lane { session, lane } => sessions[session].lane_event(cx, lane),
            Ev::CopyLoop { session } => sessions[session].run_copy_loop(cx),
            Ev::Answers { session, channel } => sessions[session].answers(cx, channel),
            Ev::Copy { copy } => self.copy_event(copy),
            Ev::Drain { session } => match daemon {
                Some(daemon) => daemon.drain(cx, sessions, session),
                None => Ok(()),
            },
            Ev::Tick { epoch } => match daemon.as_mut().filter(|d| d.epoch == epoch) {
                Some(daemon) => daemon.tick(cx, sessions),
                None => Ok(()),
            },
            Ev::Slab { epoch, class } => match daemon.as_mut().filter(|d| d.epoch == epoch) {
                Some(daemon) => daemon.slab(cx, sessions, class),
                None => Ok(()),
            },
            Ev::Disk { epoch } => match daemon.as_mut().filter(|d| d.epoch == epoch) {
                Some(daemon) => daemon.disk(cx, sessions),
                None => Ok(()),
            },
            Ev::IoDone { epoch, id } => match daemon.as_mut().filter(|d| d.epoch == epoch) {
                Some(daemon) => daemon.io_done(cx, sessions, id),
                None => Ok(()),
            },
            Ev::LogDone { epoch, id } => match daemon.as_mut().filter(|d| d.epoch == epoch) {
                Some(daemon) => daemon.log_done(cx, sessions, id),
                None => Ok(()),
            },
            Ev::Die { session } => self.die(session),
            Ev::Lost { session } => match daemon {
                Some(daemon) => daemon.lost(cx, sessions, session),
                None => Ok(()),
            },
            Ev::Exit { session } => self.exit(session),
            Ev::Attach { replica, shard } => self.attach(replica, shard),
            Ev::Reattach { session } => self.reattach(session),
            Ev::DaemonDies => self.daemon_dies(),
            Ev::DaemonStarts => self.daemon_starts(),
            Ev::Audit => self.audit(),
        }
    }
}

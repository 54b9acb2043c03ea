//! The watch thread: puts together what every other thread has published, when somebody wants to know and every few seconds.

use super::budget::Recent;
use super::build::BUILD;
use super::health::{self, Reason, Wrong};
use super::roll::{Roll, Stage};
use super::snapshot::{SCHEMA, Snapshot, Thread};
use super::wear::wear;
use crate::error::Error;
use crate::io::{DiskFigures, DiskStatus};
use crate::log::Log;
use crate::published::{PUBLISH_EVERY, Published, Reading, Ticket};
use crate::space::SpaceStatus;
use crate::supervisor;
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum requests that wait for a snapshot; the daemon answers further ones with "busy". The limit exceeds the number of HTTP
/// connections, so a probe is never refused because of others.
const ASKS: usize = 256;
/// How often threads are looked at, at least: a hung one is noticed within this and the limit of [`health`].
const BEAT: Duration = Duration::from_secs(5);
/// Beats within the time that a service manager's watchdog allows: one may come late.
const BEATS_OF_WATCHDOG: u32 = 3;
/// Interval between log lines about a short write budget, which may last for days.
const BUDGET_TOLD: Duration = Duration::from_secs(3600);
/// How long a look waits for threads that work to publish: their rounds take less. An answer waits for two looks at most, and is to be
/// there within 100 ms.
const FRESH: Duration = Duration::from_millis(40);
/// How long a snapshot takes at most, on a machine that is too busy to run the watch.
const ANSWER: Duration = Duration::from_secs(5);

/// Somebody wants to know.
type Ask = Box<dyn FnOnce(Arc<Snapshot>) + Send>;

/// Where to ask; clones ask the same thread.
#[derive(Clone)]
pub(crate) struct Watch {
    asks: Sender<Ask>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("asked", &self.asks.len()).finish()
    }
}

impl Watch {
    /// Has `reply` called with a snapshot, on the watch thread: it must not block. False if too many wait already or the
    /// watch has ended.
    pub fn ask(&self, reply: impl FnOnce(Arc<Snapshot>) + Send + 'static) -> bool {
        match self.asks.try_send(Box::new(reply)) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    /// An exact snapshot, or what there is when `patience` is over.
    pub fn snapshot(&self, patience: Duration) -> Option<Arc<Snapshot>> {
        let until = Instant::now() + patience;
        loop {
            let (reply, answer) = bounded(1);
            let asked = self.ask(move |snapshot| {
                // Whoever asked may not wait any more.
                let _ = reply.try_send(snapshot);
            });
            let snapshot = asked.then(|| answer.recv_timeout(ANSWER).ok()).flatten()?;
            if snapshot.is_exact() || Instant::now() >= until {
                return Some(snapshot);
            }
            // PACE: bounded by `patience`; a thread that hangs is not looked at all the time.
            std::thread::sleep(FRESH);
        }
    }
}

/// The running watch.
#[derive(Debug)]
pub(crate) struct WatchThread {
    watch: Watch,
    thread: JoinHandle<()>,
}

impl WatchThread {
    /// Starts it.
    pub fn spawn(roll: Roll, log: Log) -> Result<WatchThread, Error> {
        let (asks, asked) = bounded(ASKS);
        let watchdog = supervisor::watchdog();
        let beat = watchdog.map_or(BEAT, |within| BEAT.min(within / BEATS_OF_WATCHDOG));
        let watcher = Watcher {
            roll,
            began: Instant::now(),
            known: Vec::new(),
            missed: Vec::new(),
            budget: Recent::new(Instant::now()),
            budget_told: None,
            fed: watchdog.is_some(),
            log,
        };
        let builder = std::thread::Builder::new().name("kvtide-watch".into());
        let thread = builder.spawn(move || watcher.run(&asked, beat));
        let thread = thread.map_err(|e| Error::system("start the watch thread", e))?;
        Ok(WatchThread { watch: Watch { asks }, thread })
    }

    /// Where to ask.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Ends it, after everybody else who asks has.
    pub fn end(self) {
        drop(self.watch);
        if self.thread.join().is_err() {
            tracing::error!("the watch thread had panicked");
        }
    }
}

/// What the watch thread owns.
struct Watcher {
    roll: Roll,
    began: Instant,
    /// What was wrong last time.
    known: Vec<Reason>,
    /// What it went on without last time.
    missed: Vec<Reason>,
    /// Losses to the write budget over the last hour, and the time of the last log line about them.
    budget: Recent,
    budget_told: Option<Instant>,
    /// Whether a watchdog wants to be fed.
    fed: bool,
    log: Log,
}

impl Watcher {
    fn run(mut self, asked: &Receiver<Ask>, beat: Duration) {
        let mut due = Instant::now();
        loop {
            let first = match asked.recv_deadline(due) {
                Ok(ask) => Some(ask),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let asks: Vec<Ask> = first.into_iter().chain(asked.try_iter()).collect();
            let snapshot = Arc::new(self.look());
            for reply in asks {
                reply(Arc::clone(&snapshot));
            }
            if Instant::now() >= due {
                due = Instant::now() + beat;
                self.heed(&snapshot);
                self.log.tell_left_out();
            }
        }
    }

    /// Reads what all have published. All are asked to publish, at once, and waited for within a bound: one that cannot be woken shows at
    /// the next looks.
    fn look(&mut self) -> Snapshot {
        let now = Instant::now();
        let deadline = now + FRESH;
        let (host, published, disks) = (self.roll.host(), self.roll.spaces(), self.roll.disks());
        let host_ticket = host.map(Published::request);
        let space_tickets: Vec<Ticket> = published.values().map(Published::request).collect();
        let disk_tickets: Vec<Ticket> = disks.iter().map(DiskFigures::request).collect();
        let control = Thread { name: "control".into(), silent_s: silence(self.roll.control().overdue()), age_s: 0.0 };
        let mut threads = vec![control];
        let host = host.zip(host_ticket).and_then(|(host, ticket)| host.read(ticket, deadline));
        let host = take(host, "host".into(), &mut threads);
        let of_spaces = published.iter().zip(space_tickets).filter_map(|((number, space), ticket)| {
            take(space.read(ticket, deadline), format!("space-{number}"), &mut threads)
        });
        let spaces: Vec<SpaceStatus> = of_spaces.collect();
        let of_disks = (0u32..).zip(disks.iter().zip(disk_tickets)).filter_map(|(number, (disk, ticket))| {
            take(disk.read(ticket, deadline), format!("disk-{number}"), &mut threads)
        });
        let disks: Vec<DiskStatus> = of_disks.collect();
        self.budget.forget(|space| published.contains_key(&space));
        let write_budget = self.budget.look(now, &spaces, &disks, |disk| self.roll.bounds(disk));
        let registry = self.roll.registry();
        let stage = self.roll.stage();
        let uptime_s = self.began.elapsed().as_secs_f64();
        Snapshot {
            schema: SCHEMA,
            build: BUILD,
            pid: std::process::id(),
            uptime_s,
            stage,
            http: self.roll.http(),
            http_totals: self.roll.http_counters().totals(),
            progress: if stage == Stage::Starting { self.roll.progressed() } else { String::new() },
            unhealthy: health::reasons(stage, &threads, &disks),
            degraded: health::degraded(&disks, self.roll.lost_socket(), &write_budget),
            threads,
            session_totals: registry.totals(),
            sessions: registry.list(),
            spaces,
            host,
            write_budget,
            wear: disks.iter().map(|disk| wear(disk, self.roll.bounds(disk.number), uptime_s)).collect(),
            disks,
        }
    }

    /// Says in the log what is wrong now and was not, and the reverse; feeds the watchdog if nothing is.
    fn heed(&mut self, snapshot: &Snapshot) {
        let reasons = &snapshot.unhealthy;
        for reason in news(reasons, &self.known) {
            tracing::error!("unhealthy: {reason}");
        }
        for reason in news(&self.known, reasons) {
            tracing::info!("healthy again; it was: {reason}");
        }
        let is_budget = |reason: &Reason| matches!(reason.what, Wrong::WriteBudgetShort { .. });
        for reason in news(&snapshot.degraded, &self.missed).filter(|reason| !is_budget(reason)) {
            tracing::error!("degraded: {reason}; the daemon goes on without it");
        }
        let now = Instant::now();
        let due = self.budget_told.is_none_or(|told| now.duration_since(told) >= BUDGET_TOLD);
        if let Some(reason) = snapshot.degraded.iter().find(|reason| due && is_budget(reason)) {
            tracing::warn!("degraded: {reason}");
            self.budget_told = Some(now);
        }
        let was_well = self.known.is_empty() && self.missed.is_empty();
        self.missed.clone_from(&snapshot.degraded);
        if self.fed && reasons.is_empty() {
            supervisor::alive();
        }
        match (was_well, reasons.first(), snapshot.degraded.first()) {
            (_, Some(reason), _) => supervisor::say(&format!("unhealthy: {reason}")),
            (_, None, Some(reason)) => supervisor::say(&format!("degraded: {reason}")),
            (false, None, None) => supervisor::say("healthy again"),
            (true, None, None) => {}
        }
        self.known.clone_from(reasons);
    }
}

/// Those of `now` that are not about anything in `before`.
fn news<'a>(now: &'a [Reason], before: &'a [Reason]) -> impl Iterator<Item = &'a Reason> {
    now.iter().filter(|reason| !before.iter().any(|known| known.is_same(reason)))
}

/// Notes how old a thread's figures are; the figures.
fn take<T: Clone>(reading: Option<Reading<T>>, name: String, threads: &mut Vec<Thread>) -> Option<T> {
    let Reading { snapshot, age, overdue } = reading?;
    threads.push(Thread { name, silent_s: silence(overdue), age_s: age.as_secs_f64() });
    snapshot.map(Arc::unwrap_or_clone)
}

/// Seconds by which a round is overdue; as many as one may take are nothing.
fn silence(overdue: Duration) -> f64 {
    if overdue < PUBLISH_EVERY { 0.0 } else { overdue.as_secs_f64() }
}

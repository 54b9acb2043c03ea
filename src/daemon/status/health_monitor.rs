//! The health monitor: combines the figures of all threads into a snapshot, on request and every few seconds.

use super::budget::Recent;
use super::build::BUILD;
use super::endurance::endurance;
use super::health::{self, Reason, Wrong};
use super::snapshot::{SCHEMA, Snapshot, Thread};
use super::tenants::Ended;
use super::thread_registry::{Stage, ThreadRegistry};
use crate::error::Error;
use crate::log::Log;
use crate::space::SpaceStatus;
use crate::supervisor;
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use kvtide_nvme::{DiskFigures, DiskStatus};
use kvtide_rt::published::{PUBLISH_EVERY, Published, Reading, Ticket};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum requests that wait for a snapshot; the daemon answers further ones with "busy". The limit exceeds the number of HTTP
/// connections, so a probe is never refused because of others.
const ASKS: usize = 256;
/// Maximum interval between two checks of the threads. A hanging thread is noticed within this time plus the limit of [`health`].
const BEAT: Duration = Duration::from_secs(5);
/// Checks within the time limit of the service manager's watchdog; one of them may be late.
const BEATS_OF_WATCHDOG: u32 = 3;
/// Interval between log lines about a short write budget, which may last for days.
const BUDGET_TOLD: Duration = Duration::from_secs(3600);
/// How long to wait for busy threads to publish; their loop iterations take less. A response needs at most two such waits and
/// should take at most 100 ms.
const FRESH: Duration = Duration::from_millis(40);
/// Maximum time for a snapshot, on a machine that is too busy to run the health monitor.
const ANSWER: Duration = Duration::from_secs(5);

/// A request for a snapshot.
type Ask = Box<dyn FnOnce(Arc<Snapshot>) + Send>;

/// Handle of the health monitor; clones use the same thread.
#[derive(Clone)]
pub(crate) struct HealthMonitor {
    asks: Sender<Ask>,
}

impl std::fmt::Debug for HealthMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HealthMonitor").field("asked", &self.asks.len()).finish()
    }
}

impl HealthMonitor {
    /// Return the handle of a thread that has ended.
    #[cfg(test)]
    pub fn ended() -> HealthMonitor {
        HealthMonitor { asks: bounded(1).0 }
    }

    /// Call `reply` with a snapshot, on the thread of the health monitor. It must not block. Return false if too many requests wait or the
    /// thread has ended.
    pub fn ask(&self, reply: impl FnOnce(Arc<Snapshot>) + Send + 'static) -> bool {
        match self.asks.try_send(Box::new(reply)) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    /// Return an exact snapshot, or the latest one after `patience`.
    pub fn snapshot(&self, patience: Duration) -> Option<Arc<Snapshot>> {
        let until = Instant::now() + patience;
        loop {
            let (reply, answer) = bounded(1);
            let asked = self.ask(move |snapshot| {
                // The requester may have stopped waiting.
                let _ = reply.try_send(snapshot);
            });
            let snapshot = asked.then(|| answer.recv_timeout(ANSWER).ok()).flatten()?;
            if snapshot.is_exact() || Instant::now() >= until {
                return Some(snapshot);
            }
            // PACE: bounded by `patience`; a hanging thread is not polled continuously.
            std::thread::sleep(FRESH);
        }
    }
}

/// The running health monitor.
#[derive(Debug)]
pub(crate) struct HealthMonitorThread {
    monitor: HealthMonitor,
    thread: JoinHandle<()>,
}

impl HealthMonitorThread {
    /// Start the thread.
    pub fn spawn(thread_registry: ThreadRegistry, log: Log) -> Result<HealthMonitorThread, Error> {
        let (asks, asked) = bounded(ASKS);
        let watchdog = supervisor::watchdog();
        let beat = watchdog.map_or(BEAT, |within| BEAT.min(within / BEATS_OF_WATCHDOG));
        let monitor = Monitor {
            thread_registry,
            began: Instant::now(),
            known: Vec::new(),
            missed: Vec::new(),
            budget: Recent::new(Instant::now()),
            budget_told: None,
            ended: Ended::default(),
            fed: watchdog.is_some(),
            log,
        };
        let builder = std::thread::Builder::new().name("kvtide-health".into());
        let thread = builder.spawn(move || monitor.run(&asked, beat));
        let thread = thread.map_err(|e| Error::system("start the health monitor", e))?;
        Ok(HealthMonitorThread { monitor: HealthMonitor { asks }, thread })
    }

    /// Return the handle for requests.
    pub fn handle(&self) -> &HealthMonitor {
        &self.monitor
    }

    /// Wait for the end of the thread, which ends when all other handles are dropped.
    pub fn end(self) {
        drop(self.monitor);
        if self.thread.join().is_err() {
            tracing::error!("the health monitor panicked");
        }
    }
}

/// State of the health monitor.
struct Monitor {
    thread_registry: ThreadRegistry,
    began: Instant,
    /// Unhealthy reasons at the last check.
    known: Vec<Reason>,
    /// Degraded reasons at the last check.
    missed: Vec<Reason>,
    /// Losses to the write budget over the last hour, and the time of the last log line about them.
    budget: Recent,
    budget_told: Option<Instant>,
    /// Figures of spaces that have ended.
    ended: Ended,
    /// A watchdog expects pings.
    fed: bool,
    log: Log,
}

impl Monitor {
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
                self.handle(&snapshot);
                self.thread_registry.history().take(Instant::now(), &snapshot);
                self.log.tell_left_out();
            }
        }
    }

    /// Read the figures of all threads. All are asked to publish at the same time, and waited for up to a limit. A thread that
    /// cannot be woken is noticed in later snapshots.
    fn look(&mut self) -> Snapshot {
        let now = Instant::now();
        let deadline = now + FRESH;
        let (host, published, disks) =
            (self.thread_registry.host(), self.thread_registry.spaces(), self.thread_registry.disks());
        let host_ticket = host.map(Published::request);
        let space_tickets: Vec<Ticket> = published.values().map(Published::request).collect();
        let disk_tickets: Vec<Ticket> = disks.iter().map(DiskFigures::request).collect();
        let control =
            Thread { name: "control".into(), silent_s: silence(self.thread_registry.control().overdue()), age_s: 0.0 };
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
        let write_budget = self.budget.look(now, &spaces, &disks, |disk| self.thread_registry.bounds(disk));
        let quotas = self.thread_registry.quotas();
        let (tenants, hits) = self.ended.look(&spaces, &quotas, |space| published.contains_key(&space));
        let registry = self.thread_registry.registry();
        let stage = self.thread_registry.stage();
        let uptime_s = self.began.elapsed().as_secs_f64();
        Snapshot {
            schema: SCHEMA,
            build: BUILD,
            pid: std::process::id(),
            uptime_s,
            stage,
            http: self.thread_registry.http(),
            socket: self.thread_registry.socket(),
            http_totals: self.thread_registry.http_counters().totals(),
            trace_totals: self.thread_registry.trace_counters().totals(),
            progress: if stage == Stage::Starting { self.thread_registry.progressed() } else { String::new() },
            unhealthy: health::reasons(stage, &threads, &disks),
            degraded: health::degraded(&disks, host.as_ref(), self.thread_registry.lost_socket(), &write_budget),
            threads,
            hits,
            tenants,
            drained: self.thread_registry.is_drained(),
            reloads: self.thread_registry.reloads(),
            session_totals: registry.totals(),
            sessions: registry.list(),
            spaces,
            relays: self.thread_registry.relays(),
            host,
            write_budget,
            endurance: disks
                .iter()
                .map(|disk| endurance(disk, self.thread_registry.bounds(disk.number), uptime_s))
                .collect(),
            disks,
        }
    }

    /// Log new and resolved problems, and ping the watchdog if the daemon is healthy.
    fn handle(&mut self, snapshot: &Snapshot) {
        let reasons = &snapshot.unhealthy;
        for reason in news(reasons, &self.known) {
            tracing::error!("unhealthy: {reason}");
        }
        for reason in news(&self.known, reasons) {
            tracing::info!("healthy again; resolved: {reason}");
        }
        let is_budget = |reason: &Reason| matches!(reason.what, Wrong::WriteBudgetShort { .. });
        for reason in news(&snapshot.degraded, &self.missed).filter(|reason| !is_budget(reason)) {
            tracing::error!("degraded: {reason}");
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

/// Return the reasons of `now` that are about no problem in `before`.
fn news<'a>(now: &'a [Reason], before: &'a [Reason]) -> impl Iterator<Item = &'a Reason> {
    now.iter().filter(|reason| !before.iter().any(|known| known.is_same(reason)))
}

/// Record a thread's responsiveness and the age of its figures. Return the figures.
fn take<T: Clone>(reading: Option<Reading<T>>, name: String, threads: &mut Vec<Thread>) -> Option<T> {
    let Reading { snapshot, age, overdue } = reading?;
    threads.push(Thread { name, silent_s: silence(overdue), age_s: age.as_secs_f64() });
    snapshot.map(Arc::unwrap_or_clone)
}

/// Return the seconds by which a loop iteration is overdue; 0 within the normal interval.
fn silence(overdue: Duration) -> f64 {
    if overdue < PUBLISH_EVERY { 0.0 } else { overdue.as_secs_f64() }
}

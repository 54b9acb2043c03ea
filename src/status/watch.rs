//! The watch thread: asks every other thread how it stands, when somebody wants to know and every few seconds.

use super::budget::Recent;
use super::build::BUILD;
use super::health::{self, Reason, Wrong};
use super::question::{Answer, Question};
use super::roll::{Roll, Stage};
use super::snapshot::{SCHEMA, Snapshot, Thread};
use super::wear::wear;
use crate::error::Error;
use crate::host::{HostStatus, NodeLetter};
use crate::io::{DiskLetter, DiskStatus};
use crate::log::Log;
use crate::mail::Address;
use crate::space::{Letter, Report, SpaceStatus};
use crate::supervisor;
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum requests that wait for a snapshot; the daemon answers further ones with "busy". The limit exceeds the number of HTTP
/// connections, so a probe is never refused because of others.
const ASKS: usize = 256;
/// How often threads are asked at least: a hung one is noticed within this and the limit of [`health`].
const BEAT: Duration = Duration::from_secs(5);
/// Beats within the time that a service manager's watchdog allows: one may come late.
const BEATS_OF_WATCHDOG: u32 = 3;
/// Interval between log lines about a short write budget, which may last for days.
const BUDGET_TOLD: Duration = Duration::from_secs(3600);
/// How long a beat that nobody asked for waits for answers.
const PATIENCE: Duration = Duration::from_secs(1);

/// Somebody wants to know.
struct Ask {
    /// How long to wait for threads that do not answer at once.
    patience: Duration,
    reply: Box<dyn FnOnce(Arc<Snapshot>) + Send>,
}

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
    pub fn ask(&self, patience: Duration, reply: impl FnOnce(Arc<Snapshot>) + Send + 'static) -> bool {
        match self.asks.try_send(Ask { patience, reply: Box::new(reply) }) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    /// A snapshot, waited for: twice the patience at most, since the watch may be asking for somebody else.
    pub fn snapshot(&self, patience: Duration) -> Option<Arc<Snapshot>> {
        let (reply, answer) = bounded(1);
        let asked = self.ask(patience, move |snapshot| {
            // Whoever asked may not wait any more.
            let _ = reply.try_send(snapshot);
        });
        asked.then(|| answer.recv_timeout(patience * 2).ok()).flatten()
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
    pub fn spawn(
        roll: Roll,
        host: Address<NodeLetter>,
        control: Address<Report>,
        log: Log,
    ) -> Result<WatchThread, Error> {
        let (asks, asked) = bounded(ASKS);
        let watchdog = supervisor::watchdog();
        let beat = watchdog.map_or(BEAT, |within| BEAT.min(within / BEATS_OF_WATCHDOG));
        let asker = Asker {
            roll,
            host,
            control,
            began: Instant::now(),
            spaces: BTreeMap::new(),
            about_host: Question::new(),
            disks: Vec::new(),
            beat: 0,
            beat_since: Instant::now(),
            beat_taken: true,
            known: Vec::new(),
            missed: Vec::new(),
            budget: Recent::new(Instant::now()),
            budget_told: None,
            fed: watchdog.is_some(),
            log,
        };
        let builder = std::thread::Builder::new().name("kvtide-watch".into());
        let thread = builder.spawn(move || asker.run(&asked, beat));
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
struct Asker {
    roll: Roll,
    host: Address<NodeLetter>,
    control: Address<Report>,
    began: Instant,
    spaces: BTreeMap<u32, Question<SpaceStatus>>,
    about_host: Question<HostStatus>,
    disks: Vec<Question<DiskStatus>>,
    /// The last beat for the control thread, since when there is one, and whether its mailbox took it.
    beat: u64,
    beat_since: Instant,
    beat_taken: bool,
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

impl Asker {
    fn run(mut self, asked: &Receiver<Ask>, beat: Duration) {
        let mut due = Instant::now();
        loop {
            let first = match asked.recv_deadline(due) {
                Ok(ask) => Some(ask),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let asks: Vec<Ask> = first.into_iter().chain(asked.try_iter()).collect();
            let patience = asks.iter().map(|ask| ask.patience).max().unwrap_or(PATIENCE);
            let snapshot = Arc::new(self.look(Instant::now() + patience));
            for ask in asks {
                (ask.reply)(Arc::clone(&snapshot));
            }
            if Instant::now() >= due {
                due = Instant::now() + beat;
                self.heed(&snapshot);
                self.log.tell_left_out();
            }
        }
    }

    /// Asks all at once, then waits for each until the deadline.
    fn look(&mut self, deadline: Instant) -> Snapshot {
        let now = Instant::now();
        let addresses = self.roll.spaces();
        self.spaces.retain(|number, _| addresses.contains_key(number));
        for (number, address) in &addresses {
            let question = self.spaces.entry(*number).or_insert_with(Question::new);
            question.put(now, |reply| address.offer(Letter::Status(reply)).is_ok());
        }
        self.about_host.put(now, |reply| self.host.offer(NodeLetter::Status(reply)).is_ok());
        let disk_addresses = self.roll.disks();
        self.disks.resize_with(disk_addresses.len(), Question::new);
        for (question, address) in self.disks.iter_mut().zip(&disk_addresses) {
            question.put(now, |reply| address.offer(DiskLetter::Status(reply)).is_ok());
        }
        let mut threads = vec![Thread { name: "control".into(), silent_s: self.control_silence(now).as_secs_f64() }];
        let host = take(self.about_host.answer(deadline), "host".into(), &mut threads);
        let mut spaces = Vec::with_capacity(self.spaces.len());
        for (number, question) in &mut self.spaces {
            spaces.extend(take(question.answer(deadline), format!("space-{number}"), &mut threads));
        }
        let mut disks = Vec::with_capacity(self.disks.len());
        for (number, question) in self.disks.iter_mut().enumerate() {
            disks.extend(take(question.answer(deadline), format!("disk-{number}"), &mut threads));
        }
        self.budget.forget(|space| addresses.contains_key(&space));
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

    /// For how long the control thread has not seen the last beat; sends the next one if it has.
    fn control_silence(&mut self, now: Instant) -> Duration {
        let is_new = self.roll.seen() == self.beat;
        if is_new {
            self.beat += 1;
            self.beat_since = now;
        }
        // A full mailbox does not take it: it is offered again next time, and its age grows.
        if is_new || !self.beat_taken {
            self.beat_taken = self.control.offer(Report::Beat { beat: self.beat }).is_ok();
        }
        now.saturating_duration_since(self.beat_since)
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

/// Notes whether a thread answered; what it told.
fn take<T>(answer: Answer<T>, name: String, threads: &mut Vec<Thread>) -> Option<T> {
    match answer {
        Answer::Told(told) => {
            threads.push(Thread { name, silent_s: 0.0 });
            Some(told)
        }
        Answer::Silent(silence) => {
            threads.push(Thread { name, silent_s: silence.as_secs_f64() });
            None
        }
        Answer::Gone => None,
    }
}

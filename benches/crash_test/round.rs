//! One kill: a load, SIGKILL at a random moment, an immediate restart on the same directory, and reading back.

use super::check::{self, Checked};
use super::content::Book;
use super::error::CrashError;
use super::plan::{LOAD_MAX, Phase, Plan, SESSIONS, THREADS};
use super::report::Report;
use super::store::Store;
use super::work::{Load, Seen};
use crate::private_daemon::PrivateDaemon;
use kvtide_types::random::Random;
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One round in `EARLY_ONE_IN` has an early kill: while engines attach, or before the first block is stored.
const EARLY_ONE_IN: u64 = 8;
/// Maximum time of an early kill.
const EARLY: Duration = Duration::from_millis(8);
/// In one round in `TWICE_ONE_IN`, the restarted daemon is also killed during its start.
const TWICE_ONE_IN: u64 = 4;
/// Maximum time of that kill after the start.
const TWICE: Duration = Duration::from_millis(120);
/// Maximum number of blocks reported stored that a kill waits for; early kills wait for none. On a slow machine, a kill before any
/// block is stored would test nothing.
const ANSWERS_MAX: u64 = 48;
/// Time limit of that wait.
const ANSWERS_WAIT: Duration = Duration::from_secs(10);
/// Interval of checks during that wait.
const LOOK: Duration = Duration::from_millis(1);
/// Maximum time that a load may continue after a kill that it does not notice.
const NOTICE: Duration = Duration::from_secs(30);

/// The rounds of one phase, with their store and contents.
pub struct Run<'a> {
    plan: &'a Plan,
    book: Book,
    random: Random,
    daemon: PrivateDaemon,
    interrupted: Arc<AtomicBool>,
    rounds: u32,
    // Last: dropped after the daemon that uses it.
    store: Store,
}

/// Results of one round.
#[derive(Debug)]
pub struct Outcome {
    /// Time from the begin of the load to the kill.
    pub killed_after: Duration,
    /// Restarted daemons killed before they served.
    pub killed_again: u32,
    /// Time from the last start until engines can attach.
    pub restart: Duration,
    /// Blocks reported stored or durable for the first time.
    pub stored: u64,
    /// Results of the load.
    pub seen: Seen,
    /// Results of reading back.
    pub checked: Checked,
}

impl<'a> Run<'a> {
    /// Create an empty store and start the first daemon on it.
    pub fn new(plan: &'a Plan, phase: Phase) -> Result<Run<'a>, CrashError> {
        let mut random = Random::new(plan.seed);
        if phase == Phase::Evicting {
            random = random.split();
        }
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted)).map_err(CrashError::Signals)?;
        }
        let store = Store::new(plan, phase)?;
        let mut daemon = store.launch()?;
        daemon.ready()?;
        Ok(Run { plan, book: Book::default(), random, daemon, interrupted, rounds: 0, store })
    }

    /// Run one round.
    pub fn round(&mut self) -> Result<Outcome, CrashError> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(CrashError::Interrupted);
        }
        let before = self.book.stored_count();
        let early = self.random.one_in(EARLY_ONE_IN) && self.rounds > 0;
        let moment = self.random.below(if early { EARLY } else { LOAD_MAX }.as_micros() as u64);
        let moment = Duration::from_micros(moment);
        let answers = if early { 0 } else { 1 + self.random.below(ANSWERS_MAX) };
        self.rounds += 1;
        let twice = self.random.one_in(TWICE_ONE_IN);
        let again_after = Duration::from_micros(self.random.below(TWICE.as_micros() as u64));
        let seeds: Vec<Random> = (0..SESSIONS).map(|_| self.random.split()).collect();
        let began = Instant::now();
        let (plan, book, socket) = (self.plan, &self.book, self.daemon.socket().to_owned());
        let load = Load {
            plan,
            book,
            socket: &socket,
            began,
            written: AtomicU64::new(0),
            until: began + moment + ANSWERS_WAIT + NOTICE,
        };
        let (seen, killed_after, successor) = std::thread::scope(|scope| {
            let load = &load;
            let engines: Vec<_> =
                seeds.into_iter().map(|seed| scope.spawn(move || load.engine(seed, THREADS))).collect();
            // PACE: the load lasts this long by design.
            std::thread::sleep(moment);
            while book.stored_count() < before + answers && began.elapsed() < ANSWERS_WAIT {
                // PACE: bounded by ANSWERS_WAIT.
                std::thread::sleep(LOOK);
            }
            let killed_after = began.elapsed();
            let successor = self.daemon.signal(Signal::KILL).map_err(CrashError::from).and_then(|()| {
                let began = Instant::now();
                let mut successor = self.store.launch()?;
                if !twice {
                    return Ok((successor, began));
                }
                // PACE: the time that the restarted daemon runs before it is killed.
                std::thread::sleep(again_after);
                successor.signal(Signal::KILL)?;
                let began = Instant::now();
                successor = self.store.launch()?;
                Ok((successor, began))
            });
            let mut seen = Seen::default();
            for engine in engines {
                seen.add(engine.join().map_err(|_| CrashError::Thread("loads the daemon"))?);
            }
            Ok::<_, CrashError>((seen, killed_after, successor?))
        })?;
        let (mut successor, started) = successor;
        successor.ready()?;
        let restart = started.elapsed();
        self.daemon = successor;
        let stored = self.book.stored_count() - before;
        let checked = check::everything(self.plan, self.daemon.socket(), &self.book)?;
        Ok(Outcome { killed_after, killed_again: u32::from(twice), restart, stored, seen, checked })
    }

    /// End the phase: stop the last daemon, and keep the store if there were errors.
    ///
    /// # Errors
    /// No block was ever reported stored, so the test has no result.
    pub fn end(mut self, phase: Phase, report: &mut Report) -> Result<(), CrashError> {
        self.daemon.stop()?;
        if report.stored(phase) == 0 {
            return Err(CrashError::Nothing(phase.name()));
        }
        if !report.is_good() {
            report.keep(self.store.keep());
        }
        Ok(())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Checked { recovered, again, more, missing, wrong, .. } = &self.checked;
        let (killed, restart) = (self.killed_after.as_millis(), self.restart.as_millis());
        let twice = if self.killed_again > 0 { ", and again during the restart" } else { "" };
        let wrong = wrong.len() + self.seen.wrong.len();
        write!(
            f,
            "killed after {killed} ms{twice}; {} new blocks stored; serving after {restart} ms; {recovered} of these recovered, \
             {again} earlier blocks, {more} not reported stored, {missing} missing, {wrong} wrong pages",
            self.stored
        )
    }
}

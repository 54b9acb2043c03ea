//! One kill: a load, SIGKILL at a random moment, a daemon on the same directory at once, everything read back.

use super::check::{self, Checked};
use super::content::Book;
use super::error::CrashError;
use super::plan::{LOAD_MAX, Phase, Plan, SESSIONS, THREADS};
use super::random::Random;
use super::report::Report;
use super::store::Store;
use super::work::{Load, Seen};
use crate::cli::private_daemon::PrivateDaemon;
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Once in so many rounds the kill comes within the first moments: while engines attach, or before the first block is stored.
const EARLY_ONE_IN: u64 = 8;
/// How early that is.
const EARLY: Duration = Duration::from_millis(8);
/// Once in so many rounds the successor is killed too, while it starts.
const TWICE_ONE_IN: u64 = 4;
/// How long after its start.
const TWICE: Duration = Duration::from_millis(120);
/// Blocks that are reported stored before a kill, at most; early kills wait for none. A machine under load is slower, and a kill
/// before anything was stored proves nothing.
const ANSWERS_MAX: u64 = 48;
/// How long a kill waits for them.
const ANSWERS_WAIT: Duration = Duration::from_secs(10);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(1);
/// How long a load may go on after a kill that it did not notice.
const NOTICE: Duration = Duration::from_secs(30);

/// The rounds of one phase: a store, and what is known of it.
pub struct Run<'a> {
    plan: &'a Plan,
    book: Book,
    random: Random,
    daemon: PrivateDaemon,
    interrupted: Arc<AtomicBool>,
    rounds: u32,
    // Last: it goes when no daemon uses it any more.
    store: Store,
}

/// What one round came to.
#[derive(Debug)]
pub struct Outcome {
    /// When the daemon was killed.
    pub killed_after: Duration,
    /// Kills of successors that had not begun to serve.
    pub killed_again: u32,
    /// From the last start to the first engine that may attach.
    pub restart: Duration,
    /// Blocks that were reported stored or durable for the first time.
    pub stored: u64,
    /// What the load saw.
    pub seen: Seen,
    /// What was read back.
    pub checked: Checked,
}

impl<'a> Run<'a> {
    /// An empty store, and the first daemon on it.
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

    /// One kill.
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
            // PACE: the load lasts so long by design.
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
                // PACE: how far the successor gets before it is killed too.
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

    /// Ends the phase: the last daemon is stopped, the store kept if something is wrong.
    ///
    /// # Errors
    /// Nothing was ever reported stored, so nothing is proved.
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
        let twice = if self.killed_again > 0 { ", and its successor while it started" } else { "" };
        let wrong = wrong.len() + self.seen.wrong.len();
        write!(
            f,
            "killed after {killed} ms{twice}; {} blocks were new and reported stored; serving again after {restart} ms: \
             {recovered} of them there, {again} from before, {more} not promised, {missing} missing, {wrong} pages wrong",
            self.stored
        )
    }
}

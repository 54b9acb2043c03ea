//! Ends the waits of a lane's stream if the copy thread does not end them in time.
//!
//! The copy thread completes a lane's boundaries, and ends their waits with an error at the session's timeout. But it makes calls of
//! the driver, and the driver may keep a call until the device is idle, which a stream that waits never becomes. So each lane has a
//! thread that makes no such call: it only stores the words for which the stream waits.
//!
//! 1. A wait is added before its stream can reach it, and its boundary's words then say that it timed out.
//! 2. The thread that removes a wait from the list ends it: [`Watchdog::complete`] writes the words and the word under the lock, and the
//!    thread stores the word under the lock. So the device never reads words that are being written.
//! 3. The thread waits one to two seconds longer than the session's timeout, so that it acts only if the copy thread does not. It
//!    polls, so that a wait costs no wake-up.

use super::gates::Gates;
use kvtide_kernels::WaitWord;
use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Time after the session's timeout in which the copy thread ends a wait itself.
const GRACE: Duration = Duration::from_secs(1);

/// Maximum time between two polls.
const POLL_MAX: Duration = Duration::from_secs(1);

/// The waits of a lane's stream, and the thread that ends them.
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What a stream waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The word, to reach this value.
    Word(u64),
    /// All planes of this gated step.
    Gates(u64),
}

struct Shared {
    word: WaitWord,
    gates: Arc<Gates>,
    limit: Duration,
    inner: Mutex<Inner>,
    stopped: Condvar,
}

struct Inner {
    /// The waits, in the stream's order.
    waits: VecDeque<Target>,
    /// When the front became the front.
    since: Instant,
    /// The thread has ended waits of this step.
    late: bool,
    stop: bool,
}

impl Watchdog {
    /// Start the thread for a word and for gates.
    pub fn start(word: WaitWord, gates: Arc<Gates>, timeout: Duration) -> std::io::Result<Watchdog> {
        let inner = Inner { waits: VecDeque::new(), since: Instant::now(), late: false, stop: false };
        let limit = timeout.saturating_add(GRACE);
        let shared = Arc::new(Shared { word, gates, limit, inner: Mutex::new(inner), stopped: Condvar::new() });
        let its = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("kvtide-watchdog".into()).spawn(move || its.watch())?;
        Ok(Watchdog { shared, thread: Some(thread) })
    }

    /// Return the word.
    pub fn word(&self) -> &WaitWord {
        &self.shared.word
    }

    /// Return the gates.
    pub fn gates(&self) -> &Arc<Gates> {
        &self.shared.gates
    }

    /// Begin a step.
    pub fn begin(&self) {
        self.shared.lock().late = false;
    }

    /// Return whether the thread has ended waits of this step.
    pub fn is_late(&self) -> bool {
        self.shared.lock().late
    }

    /// Watch a wait, before its stream can reach it.
    pub fn add(&self, target: Target) {
        let mut inner = self.shared.lock();
        if inner.waits.is_empty() {
            inner.since = Instant::now();
        }
        inner.waits.push_back(target);
    }

    /// End the first wait: write its boundary's words, then release the stream. Return false, and do nothing, if the thread ended it.
    pub fn complete(&self, target: u64, write: impl FnOnce()) -> bool {
        self.advance(Target::Word(target), true, || {
            write();
            self.shared.word.release(target);
        })
    }

    /// Write and release planes of the first wait, a gated step; `last`: none is left. Return false, and do nothing, if the thread
    /// ended it.
    pub fn complete_gates(&self, step: u64, last: bool, write: impl FnOnce()) -> bool {
        self.advance(Target::Gates(step), last, write)
    }

    fn advance(&self, target: Target, last: bool, write: impl FnOnce()) -> bool {
        let mut inner = self.shared.lock();
        if inner.waits.front() != Some(&target) {
            return false;
        }
        if last {
            inner.waits.pop_front();
        }
        inner.since = Instant::now();
        write();
        true
    }

    /// Forget a wait that could not be enqueued completely.
    pub fn cancel(&self, target: Target) {
        self.shared.lock().waits.retain(|&wait| wait != target);
    }

    /// Forget the thread, in a forked child that does not have it.
    pub fn forget(&mut self) {
        std::mem::forget(self.thread.take());
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self) {
        let mut inner = self.lock();
        while !inner.stop {
            let late = inner.since.elapsed() >= self.limit;
            if late && !inner.waits.is_empty() {
                // All of them: the step has failed, and the blocked call ends only when the stream waits for nothing.
                for target in inner.waits.drain(..) {
                    match target {
                        Target::Word(target) => self.word.release(target),
                        Target::Gates(step) => self.gates.release(step),
                    }
                }
                inner.late = true;
            }
            let poll = (self.limit / 4).min(POLL_MAX);
            inner = self.stopped.wait_timeout(inner, poll).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.shared.lock().stop = true;
            self.shared.stopped.notify_one();
            // It waits for nothing but this.
            let _ = thread.join();
        }
    }
}

//! Snapshots of their state that threads publish, and the heartbeat of each thread.
//!
//! ```text
//! owner:  work ─▶ publish, at most every 100 ms ─▶ … ─▶ publish the rest      ─▶ sleep
//! reader: ticket, wakes the owner ─▶ the snapshot that serves the ticket
//!                                 ─▶ else, after a bound, the newest with its age
//! ```
//!
//! A reader never waits for a mailbox or a queue: the ticket is an atomic counter that the owner checks once per round. The lock
//! only guards the swap of a pointer.
//!
//! A sleeping owner is woken even if it has published everything: work done by an engine before the request may still be in a ring
//! that the owner has not read. An owner that cannot be woken marks its snapshot as exact, or not, before it waits for a message,
//! and serves whoever asked before that.
//!
//! Ordering. A reader takes its ticket, then wakes the owner. An owner announces its sleep, checks the tickets once more, then
//! sleeps. All these operations are SeqCst: an owner that sleeps has seen the ticket, or is woken.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which a busy owner publishes, unless a reader waits.
pub const PUBLISH_EVERY: Duration = Duration::from_millis(100);

/// A time that never comes.
const NEVER: u64 = u64::MAX;

/// Heartbeat of a thread: the latest time of its next round. Clones share it.
#[derive(Clone, Debug)]
pub struct Heartbeat(Arc<Beats>);

#[derive(Debug)]
struct Beats {
    clock: Instant,
    /// In microseconds of the clock: start of the current round, or time at which the sleeping thread wakes up by itself.
    due_us: AtomicU64,
    /// Rounds started.
    rounds: AtomicU64,
}

impl Default for Heartbeat {
    /// Create the heartbeat of a thread that starts now.
    fn default() -> Heartbeat {
        Heartbeat(Arc::new(Beats { clock: Instant::now(), due_us: AtomicU64::new(0), rounds: AtomicU64::new(0) }))
    }
}

impl Heartbeat {
    /// Record the start of a round.
    pub fn round(&self) {
        self.0.due_us.store(self.now_us(), Ordering::Relaxed);
        self.0.rounds.store(self.rounds() + 1, Ordering::Relaxed);
    }

    /// Record that the thread sleeps, for at most this time; None: until an event.
    pub fn sleep(&self, most: Option<Duration>) {
        let due = most.map_or(NEVER, |most| self.now_us().saturating_add(most.as_micros() as u64));
        self.0.due_us.store(due, Ordering::Relaxed);
    }

    /// Return how long its next round is overdue.
    pub fn overdue(&self) -> Duration {
        let due_us = self.0.due_us.load(Ordering::Relaxed);
        Duration::from_micros(self.now_us().saturating_sub(due_us))
    }

    fn rounds(&self) -> u64 {
        self.0.rounds.load(Ordering::Relaxed)
    }

    fn now_us(&self) -> u64 {
        self.0.clock.elapsed().as_micros() as u64
    }
}

/// State shared by owner and readers.
struct Shared<T> {
    newest: Mutex<Newest<T>>,
    published: Condvar,
    /// Tickets taken by readers.
    tickets: AtomicU64,
    /// The owner waits where it cannot be woken, and the newest snapshot is exact.
    is_exact: AtomicBool,
    /// Time up to which the newest snapshot was exact, in microseconds of the heartbeat's clock.
    exact_us: AtomicU64,
    ended: AtomicBool,
    heartbeat: Heartbeat,
    /// Wakes the owner. Unset: the owner publishes without it, or has nothing more to publish.
    ring: OnceLock<Ring>,
    /// A wake-up not followed by a round yet: the number of rounds before it, and its time.
    rung: Mutex<Option<(u64, Instant)>>,
}

type Ring = Box<dyn Fn() + Send + Sync>;

struct Newest<T> {
    snapshot: Option<Arc<T>>,
    /// Tickets answered by it.
    serves: u64,
}

/// The owner's end. When it is dropped, readers see that the thread has ended.
pub struct Publisher<T> {
    shared: Arc<Shared<T>>,
    /// The state changed since the last snapshot.
    changed: bool,
    asleep: bool,
    /// Time of the last snapshot.
    at: Option<Instant>,
    /// Tickets answered by the next snapshot, and by the last one.
    serving: u64,
    served: u64,
}

/// The readers' end; clones read the same snapshots.
pub struct Published<T>(Arc<Shared<T>>);

/// A request for a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    number: u64,
    /// The newest snapshot was exact when the ticket was taken.
    is_exact: bool,
}

/// Result of a read.
#[derive(Clone, Debug)]
pub struct Reading<T> {
    /// The newest snapshot; None before the first one.
    pub snapshot: Option<Arc<T>>,
    /// Its age, or how long the first one has been missing; zero: it is exact.
    pub age: Duration,
    /// How long the owner has been in one round; zero: it is not overdue, or sleeps.
    pub overdue: Duration,
}

/// Create both ends for a thread that starts now.
pub fn published<T>() -> (Publisher<T>, Published<T>) {
    let shared = Arc::new(Shared {
        newest: Mutex::new(Newest { snapshot: None, serves: 0 }),
        published: Condvar::new(),
        tickets: AtomicU64::new(0),
        is_exact: AtomicBool::new(false),
        exact_us: AtomicU64::new(0),
        ended: AtomicBool::new(false),
        heartbeat: Heartbeat::default(),
        ring: OnceLock::new(),
        rung: Mutex::new(None),
    });
    let publisher =
        Publisher { shared: Arc::clone(&shared), changed: true, asleep: false, at: None, serving: 0, served: 0 };
    (publisher, Published(shared))
}

impl<T> Publisher<T> {
    /// Set the function that wakes the owner. It must cause a round even if no message waits, and must not block.
    pub fn rung_by(&self, ring: impl Fn() + Send + Sync + 'static) {
        // Only the owner sets it, once.
        let _ = self.shared.ring.set(Box::new(ring));
    }

    /// Start a round. Call it before any work of the round.
    pub fn round(&mut self) {
        let Shared { heartbeat, exact_us, is_exact, .. } = &*self.shared;
        heartbeat.round();
        if std::mem::take(&mut self.asleep) {
            if !self.changed {
                exact_us.store(heartbeat.now_us(), Ordering::Relaxed);
            }
            is_exact.store(false, Ordering::SeqCst);
        }
    }

    /// Record a change of the published state.
    pub fn changed(&mut self) {
        self.changed = true;
    }

    /// Return true if a reader waits for a snapshot.
    pub fn is_wanted(&self) -> bool {
        self.shared.tickets.load(Ordering::SeqCst) > self.served
    }

    /// Return true if a snapshot should be published now: a reader waits, or the state changed and the last one is old enough.
    /// Create the snapshot after this call.
    pub fn is_due(&mut self) -> bool {
        let is_time = |at: Instant| at.elapsed() >= PUBLISH_EVERY;
        self.has_changes() && (self.serving > self.served || self.at.is_none_or(is_time))
    }

    /// Return true if a snapshot should be published now by an owner with little work: a reader waits, or the state changed. Create
    /// the snapshot after this call.
    pub fn has_changes(&mut self) -> bool {
        // Work done before a ticket was taken is in the snapshot.
        self.serving = self.shared.tickets.load(Ordering::SeqCst);
        self.changed || self.serving > self.served
    }

    /// Publish a snapshot.
    pub fn publish(&mut self, snapshot: T) {
        let exact_us = self.shared.heartbeat.now_us();
        let snapshot = Arc::new(snapshot);
        let before = {
            let mut newest = self.shared.lock();
            newest.serves = self.serving;
            self.shared.exact_us.store(exact_us, Ordering::Relaxed);
            newest.snapshot.replace(snapshot)
        };
        if self.serving > self.served {
            self.shared.published.notify_all();
        }
        drop(before);
        (self.changed, self.at, self.served) = (false, Some(Instant::now()), self.serving);
    }

    /// Return when the owner should start another round to publish remaining changes.
    pub fn due(&self) -> Option<Duration> {
        let left = |at: Instant| PUBLISH_EVERY.saturating_sub(at.elapsed());
        self.changed.then(|| self.at.map_or(Duration::ZERO, left))
    }

    /// Record that the owner is about to sleep, for at most this time. It must check [`Publisher::is_wanted`] once more before it
    /// sleeps.
    pub fn sleep(&mut self, most: Option<Duration>) {
        self.asleep = true;
        self.shared.heartbeat.sleep(most);
    }

    /// The same for a sleep from which readers cannot wake it. Readers that came since its last check are served here: without
    /// changes, the newest snapshot is exact.
    pub fn sleep_unrung(&mut self, most: Option<Duration>) {
        self.sleep(most);
        self.shared.is_exact.store(!self.changed, Ordering::SeqCst);
        // After the store: a reader has seen it, or its ticket is seen here.
        if !self.changed && self.is_wanted() {
            self.served = self.shared.tickets.load(Ordering::SeqCst);
            self.shared.lock().serves = self.served;
            self.shared.published.notify_all();
        }
    }
}

impl<T> Drop for Publisher<T> {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // Under the lock, so that no reader misses it between its check and its wait.
        drop(self.shared.lock());
        self.shared.published.notify_all();
    }
}

impl<T> Published<T> {
    /// Request a snapshot that includes everything done before this call; does not wait.
    pub fn request(&self) -> Ticket {
        let number = self.0.tickets.fetch_add(1, Ordering::SeqCst) + 1;
        let is_exact = self.0.is_exact.load(Ordering::SeqCst);
        if !is_exact {
            self.ring();
        }
        Ticket { number, is_exact }
    }

    /// Return the newest snapshot: the requested one if the owner publishes it before the deadline. None: the owner has ended.
    pub fn read(&self, ticket: Ticket, deadline: Instant) -> Option<Reading<T>> {
        let Ticket { number: ticket, is_exact } = ticket;
        let mut newest = self.0.lock();
        while !is_exact && newest.serves < ticket && !self.has_ended() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            newest = self.0.published.wait_timeout(newest, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if self.has_ended() {
            return None;
        }
        let (snapshot, is_served) = (newest.snapshot.clone(), newest.serves >= ticket);
        drop(newest);
        let unanswered = self.unanswered();
        let age = match (is_served, is_exact) {
            (true, _) => Duration::ZERO,
            (false, true) => unanswered,
            (false, false) => self.0.inexact(),
        };
        let overdue = if is_served { Duration::ZERO } else { self.0.heartbeat.overdue().max(unanswered) };
        Some(Reading { snapshot, age, overdue })
    }

    fn ring(&self) {
        let Some(ring) = self.0.ring.get() else { return };
        let rounds = self.0.heartbeat.rounds();
        let mut rung = self.0.rung();
        if rung.is_none_or(|(before, _)| before != rounds) {
            *rung = Some((rounds, Instant::now()));
        }
        drop(rung);
        ring();
    }

    /// Return how long the owner has not started a round since it was woken; delays within the normal interval count as zero.
    fn unanswered(&self) -> Duration {
        let rounds = self.0.heartbeat.rounds();
        let rung = self.0.rung().filter(|(before, _)| *before == rounds);
        rung.map_or(Duration::ZERO, |(_, at)| at.elapsed()).saturating_sub(PUBLISH_EVERY)
    }

    fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::SeqCst)
    }
}

impl<T> Shared<T> {
    /// Return how long ago the newest snapshot was exact; never zero, which means exact.
    fn inexact(&self) -> Duration {
        let exact_us = self.exact_us.load(Ordering::Relaxed);
        Duration::from_micros(self.heartbeat.now_us().saturating_sub(exact_us).max(1))
    }

    /// A poisoned lock is safe to use: it guards only a pointer.
    fn lock(&self) -> MutexGuard<'_, Newest<T>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rung(&self) -> MutexGuard<'_, Option<(u64, Instant)>> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Published<T> {
    fn clone(&self) -> Self {
        Published(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Published<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").field("heartbeat", &self.0.heartbeat).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Publisher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").field("changed", &self.changed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mail::mailbox;
    use kvtide_wire::os::poll::readable;
    use std::os::fd::AsFd;

    /// Far above the time that any of this takes.
    const BOUND: Duration = Duration::from_secs(30);

    fn in_time() -> Instant {
        Instant::now() + BOUND
    }

    /// Create a publisher that counts its wake-ups.
    fn rung() -> (Publisher<u32>, Published<u32>, Arc<AtomicU64>) {
        let (publisher, published) = published();
        let rings = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&rings);
        publisher.rung_by(move || _ = counted.fetch_add(1, Ordering::SeqCst));
        (publisher, published, rings)
    }

    #[test]
    fn what_was_done_before_a_request_is_in_what_is_read() {
        let (mut owner, figures, _) = rung();
        assert!(owner.is_due(), "nothing was published yet");
        owner.publish(1);
        owner.changed();
        assert!(!owner.is_due(), "the last snapshot is recent");
        let ticket = figures.request();
        assert!(owner.is_wanted() && owner.is_due());
        owner.publish(2);
        let reading = figures.read(ticket, in_time()).unwrap();
        assert_eq!((reading.snapshot.as_deref(), reading.age), (Some(&2), Duration::ZERO));
        assert!(!owner.is_due() && owner.due().is_none(), "nothing has changed");
    }

    #[test]
    fn a_sleeping_owner_is_rung_and_looks_whether_something_has_come_in() {
        let (mut owner, figures, rings) = rung();
        owner.publish(1);
        owner.sleep(None);
        let ticket = figures.request();
        assert_eq!(rings.load(Ordering::SeqCst), 1);
        owner.round();
        assert!(owner.is_wanted() && owner.is_due(), "it publishes without a known change");
        owner.publish(2);
        let reading = figures.read(ticket, in_time()).unwrap();
        assert_eq!(
            (reading.snapshot.as_deref(), reading.age, reading.overdue),
            (Some(&2), Duration::ZERO, Duration::ZERO)
        );
    }

    #[test]
    fn an_owner_that_no_ring_reaches_is_exact_unless_it_says_otherwise() {
        let (mut owner, figures, rings) = rung();
        owner.publish(1);
        owner.sleep_unrung(None);
        let age = || figures.read(figures.request(), Instant::now()).unwrap().age;
        assert_eq!((age(), rings.load(Ordering::SeqCst)), (Duration::ZERO, 0));
        owner.round();
        owner.changed();
        owner.sleep_unrung(owner.due());
        assert_ne!(age(), Duration::ZERO);
    }

    #[test]
    fn who_asks_just_before_such_an_owner_sleeps_does_not_wait() {
        let (mut owner, figures, _) = rung();
        owner.publish(1);
        owner.round();
        let ticket = figures.request();
        owner.sleep_unrung(None);
        let reading = figures.read(ticket, in_time()).unwrap();
        assert_eq!((reading.snapshot.as_deref(), reading.age), (Some(&1), Duration::ZERO));
        // Changes are not in the snapshot; the reader gets them when the owner publishes.
        owner.round();
        owner.changed();
        let ticket = figures.request();
        owner.sleep_unrung(owner.due());
        assert_ne!(figures.read(ticket, Instant::now()).unwrap().age, Duration::ZERO);
        assert!(owner.has_changes());
        owner.publish(2);
        assert_eq!(figures.read(ticket, in_time()).unwrap().snapshot.as_deref(), Some(&2));
    }

    #[test]
    fn an_owner_that_hangs_in_a_round_is_overdue_and_its_last_snapshot_ages() {
        let (mut owner, figures, _) = rung();
        let ticket = figures.request();
        let none = figures.read(ticket, Instant::now()).unwrap();
        assert!(none.snapshot.is_none() && none.age > Duration::ZERO, "{none:?}");
        assert!(owner.has_changes());
        owner.publish(1);
        owner.sleep(None);
        let before = Instant::now();
        owner.round();
        let late = || {
            let ticket = figures.request();
            figures.read(ticket, Instant::now()).unwrap()
        };
        while late().age <= Duration::from_millis(5) {
            assert!(before.elapsed() < BOUND);
        }
        let reading = late();
        assert_eq!(reading.snapshot.as_deref(), Some(&1));
        // The clock's microseconds are rounded.
        let most = before.elapsed() + Duration::from_micros(1);
        assert!(reading.overdue > Duration::from_millis(5) && reading.age <= most, "{reading:?}");
        owner.round();
        assert!(owner.has_changes(), "a reader waits");
        owner.publish(2);
        assert_eq!(figures.read(figures.request(), Instant::now()).unwrap().snapshot.as_deref(), Some(&2));
    }

    #[test]
    fn a_sleeper_that_cannot_be_woken_shows_and_one_that_no_ring_reaches_does_not() {
        let (mut owner, figures, _) = rung();
        owner.publish(1);
        let silent = || figures.read(figures.request(), Instant::now()).unwrap().overdue;
        let before = Instant::now();
        owner.sleep(None);
        while silent() == Duration::ZERO {
            assert!(before.elapsed() < BOUND);
        }
        owner.round();
        owner.sleep_unrung(None);
        assert_eq!(silent(), Duration::ZERO, "the owner started a round");
        assert_eq!(figures.0.rung().map(|(rounds, _)| rounds), Some(0), "no wake-up is pending");
    }

    #[test]
    fn a_reader_of_an_owner_that_ends_is_told_so() {
        let (owner, figures, _) = rung();
        let ticket = figures.request();
        let ends = std::thread::spawn(move || drop(owner));
        assert!(figures.read(ticket, in_time()).is_none());
        ends.join().unwrap();
    }

    /// An owner that counts messages, publishes and sleeps as the daemon's threads do, and a reader. The reader must find
    /// everything counted that it knows was done, without running into a deadline.
    #[test]
    fn a_reader_never_misses_what_it_knows_was_done() {
        const MESSAGES: u64 = 20_000;
        let (address, messages) = mailbox::<()>(4).unwrap();
        let (mut owner, figures) = published();
        let ring = address.waker();
        owner.rung_by(move || ring.wake());
        let done = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&done);
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            loop {
                owner.round();
                messages.awake();
                messages.quiet();
                while messages.take().is_some() {
                    count += 1;
                    owner.changed();
                    counted.store(count, Ordering::SeqCst);
                }
                if owner.is_due() {
                    owner.publish(count);
                }
                if count == MESSAGES {
                    return;
                }
                messages.announce();
                let most = owner.due();
                owner.sleep(most);
                if messages.is_empty() && !owner.is_wanted() {
                    readable(&[messages.as_fd()], most.unwrap_or(BOUND)).unwrap();
                }
            }
        });
        for sent in 0..MESSAGES {
            address.send(()).unwrap();
            if sent % 7 == 0 {
                let known = done.load(Ordering::SeqCst);
                let Some(reading) = figures.read(figures.request(), in_time()) else { break };
                assert_eq!(reading.age, Duration::ZERO);
                assert!(reading.snapshot.as_deref() >= Some(&known), "{reading:?} after {known}");
            }
        }
        thread.join().unwrap();
    }
}

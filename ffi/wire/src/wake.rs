//! The need-wakeup protocol: a consumer that found nothing announces that it will sleep, and a producer that sees the announcement
//! rings.
//!
//! 1. Consumer: `sleeping = 1`; SeqCst fence; check once more; if nothing is there, block on the bell. After waking: `sleeping =
//!    0`.
//! 2. Producer: hand the entry over; SeqCst fence; if `sleeping` is set, ring the bell.
//!
//! The two fences are in one total order. If the producer's is first, the consumer's second check sees the entry; if the consumer's
//! is first, the producer sees the announcement and rings. Either way the consumer never sleeps while an entry waits. The bell
//! keeps a ring that came before the consumer blocked. The word lies in the consumer's memory and the producer only reads it, so a
//! producer may ring more than once for one sleep, but never too rarely.

use crate::sync::{AtomicU32, Ordering, fence};
use core::ops::Deref;

/// Wakes the consumer. A ring is kept until the consumer has blocked and returned.
pub trait Bell {
    /// Ring. Must not block, whatever the peer does; a ring that the bell already keeps may be dropped.
    fn ring(&self);
}

/// The producer's side.
#[derive(Clone, Debug)]
pub struct Waker<W, B> {
    sleeping: W,
    bell: B,
}

impl<W: Deref<Target = AtomicU32>, B: Bell> Waker<W, B> {
    /// Create a waker that reads the consumer's word and rings its bell.
    pub fn new(sleeping: W, bell: B) -> Self {
        Waker { sleeping, bell }
    }

    /// Wake the consumer if it sleeps. Call it after entries were handed over. Return true if the bell was rung.
    pub fn wake(&self) -> bool {
        fence(Ordering::SeqCst); // rule 2
        let sleeping = self.sleeping.load(Ordering::Relaxed) != 0;
        if sleeping {
            self.bell.ring();
        }
        sleeping
    }
}

/// The consumer's side.
#[derive(Clone, Debug)]
pub struct Sleeper<W> {
    sleeping: W,
}

impl<W: Deref<Target = AtomicU32>> Sleeper<W> {
    /// Create a consumer that announces itself in this word of its own memory.
    pub fn new(sleeping: W) -> Self {
        Sleeper { sleeping }
    }

    /// Do the first half of rule 1. A consumer of several rings announces on each, calls [`announced`] once, checks every ring once
    /// more, and blocks if all are empty.
    pub fn announce(&self) {
        self.sleeping.store(1, Ordering::Relaxed);
    }

    /// Withdraw the announcement.
    pub fn awake(&self) {
        self.sleeping.store(0, Ordering::Relaxed);
    }

    /// Do all of rule 1 for one consumer: announce, check once more (`ready`), and block only if nothing was found.
    pub fn sleep_unless<T>(&self, ready: impl FnOnce() -> Option<T>, block: impl FnOnce()) -> Option<T> {
        self.announce();
        announced();
        let found = ready();
        if found.is_none() {
            block();
        }
        self.awake();
        found
    }
}

/// Issue the fence between announcements and the second check (rule 1).
pub fn announced() {
    fence(Ordering::SeqCst);
}

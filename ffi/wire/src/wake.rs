//! The need-wakeup protocol: a consumer that found nothing announces that it will sleep, a producer that sees the
//! announcement rings.
//!
//! 1. Consumer: `sleeping = 1`; SeqCst fence; look once more; nothing there: block on the bell. Awake again: `sleeping = 0`.
//! 2. Producer: hand the entry over; SeqCst fence; `sleeping` set: ring the bell.
//!
//! The two fences are in one total order. If the producer's is first, the consumer's second look sees the entry; if the
//! consumer's is first, the producer sees the announcement and rings. Either way the consumer does not sleep over an entry.
//! The bell remembers a ring that came before the consumer blocked. The word lies in the consumer's memory; the producer only
//! reads it, so a producer may ring more than once for one sleep, never too rarely.

use crate::sync::{AtomicU32, Ordering, fence};
use core::ops::Deref;

/// What wakes the consumer: rings are remembered until it has blocked and returned.
pub trait Bell {
    /// Rings. Must not block, whatever the peer does; a ring that the bell already remembers may be dropped.
    fn ring(&self);
}

/// The producer's side.
#[derive(Clone, Debug)]
pub struct Waker<W, B> {
    sleeping: W,
    bell: B,
}

impl<W: Deref<Target = AtomicU32>, B: Bell> Waker<W, B> {
    /// A waker that reads the consumer's word and rings its bell.
    pub fn new(sleeping: W, bell: B) -> Self {
        Waker { sleeping, bell }
    }

    /// To be called after entries were handed over. True if the bell was rung.
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
    /// A consumer that announces itself in this word of its own memory.
    pub fn new(sleeping: W) -> Self {
        Sleeper { sleeping }
    }

    /// First half of rule 1. A consumer of several rings announces on each, calls [`announced`] once, looks at every ring once
    /// more, and blocks if all are empty.
    pub fn announce(&self) {
        self.sleeping.store(1, Ordering::Relaxed);
    }

    /// Takes the announcement back.
    pub fn awake(&self) {
        self.sleeping.store(0, Ordering::Relaxed);
    }

    /// The whole of rule 1 for one consumer: announces, looks once more (`ready`), and blocks only if that found nothing.
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

/// The fence between announcements and the second look (rule 1).
pub fn announced() {
    fence(Ordering::SeqCst);
}

//! Events: points in a stream's work.

use crate::order::Clock;
use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// An event; its handle is the address inside the `Arc`.
pub(crate) struct Event {
    pub device: usize,
    pub timed: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: Option<Arc<Record>>,
    /// Its last record went into a graph.
    captured: bool,
}

/// A record of an event.
#[derive(Default)]
pub(crate) struct Record {
    reached: Mutex<Option<Reached>>,
    changed: Condvar,
}

/// When its stream reached a record, and what is ordered before it.
#[derive(Clone)]
pub(crate) struct Reached {
    pub when: Instant,
    pub clock: Arc<Clock>,
}

impl Event {
    pub fn new(device: usize, timed: bool) -> Arc<Self> {
        Arc::new(Self { device, timed, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Return a new record, which its stream will reach.
    pub fn record(&self) -> Arc<Record> {
        let record = Arc::<Record>::default();
        *self.lock() = State { last: Some(Arc::clone(&record)), captured: false };
        record
    }

    /// Note that it was recorded into a graph: nothing reaches that record.
    pub fn capture(&self) {
        self.lock().captured = true;
    }

    /// Return whether its last record went into a graph.
    pub fn is_captured(&self) -> bool {
        self.lock().captured
    }

    /// Return the last record, for which a wait waits.
    pub fn last(&self) -> Option<Arc<Record>> {
        self.lock().last.clone()
    }
}

impl Record {
    fn lock(&self) -> MutexGuard<'_, Option<Reached>> {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Note that the stream has reached it.
    pub fn reach(&self, clock: Clock) {
        *self.lock() = Some(Reached { when: Instant::now(), clock: Arc::new(clock) });
        self.changed.notify_all();
    }

    /// Block a stream's thread until it was reached; return what is ordered before it.
    pub fn wait(&self) -> Arc<Clock> {
        let mut reached = self.lock();
        loop {
            if let Some(reached) = &*reached {
                return Arc::clone(&reached.clock);
            }
            reached = self.changed.wait(reached).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn reached(&self) -> Option<Reached> {
        self.lock().clone()
    }
}

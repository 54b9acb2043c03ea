//! Events: points in a stream's work.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// An event; its handle is the address inside the `Arc`.
pub(crate) struct Event {
    pub device: usize,
    pub timed: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of records.
    recorded: u64,
    /// The last record that its stream has reached.
    reached: u64,
    when: Option<Instant>,
    /// Its last record went into a graph.
    captured: bool,
}

impl Event {
    pub fn new(device: usize, timed: bool) -> Arc<Self> {
        Arc::new(Self { device, timed, state: Mutex::default(), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Return a new record, which its stream will reach.
    pub fn record(&self) -> u64 {
        let mut state = self.lock();
        state.captured = false;
        state.recorded += 1;
        state.recorded
    }

    /// Note that it was recorded into a graph: nothing reaches that record.
    pub fn capture(&self) -> u64 {
        self.lock().captured = true;
        0
    }

    /// Return whether its last record went into a graph.
    pub fn is_captured(&self) -> bool {
        self.lock().captured
    }

    /// Return the last record, for which a wait waits.
    pub fn last(&self) -> u64 {
        self.lock().recorded
    }

    /// Note that the stream has reached a record.
    pub fn reach(&self, record: u64) {
        let mut state = self.lock();
        if record > state.reached {
            state.reached = record;
            state.when = Some(Instant::now());
        }
        self.changed.notify_all();
    }

    /// Block a stream's thread until a record was reached.
    pub fn wait(&self, record: u64) {
        let mut state = self.lock();
        while state.reached < record {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Return whether its last record was reached.
    pub fn is_done(&self) -> bool {
        let state = self.lock();
        state.reached >= state.recorded
    }

    /// Return when its last record was reached; `None` if it was never recorded.
    pub fn when(&self) -> Option<Instant> {
        self.lock().when
    }
}

//! Events: points in a stream's work.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// An event; its handle is the address of what the `Arc` holds.
pub(crate) struct Event {
    pub device: usize,
    pub timed: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How often it was recorded.
    recorded: u64,
    /// The last record that its stream has come to.
    reached: u64,
    when: Option<Instant>,
}

impl Event {
    pub fn new(device: usize, timed: bool) -> Arc<Self> {
        Arc::new(Self { device, timed, state: Mutex::default(), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new record, to be reached by its stream.
    pub fn record(&self) -> u64 {
        let mut state = self.lock();
        state.recorded += 1;
        state.recorded
    }

    /// The last record: what a wait is for.
    pub fn last(&self) -> u64 {
        self.lock().recorded
    }

    /// The stream has come to a record.
    pub fn reach(&self, record: u64) {
        let mut state = self.lock();
        if record > state.reached {
            state.reached = record;
            state.when = Some(Instant::now());
        }
        self.changed.notify_all();
    }

    /// Blocks a stream's thread until a record was reached.
    pub fn wait(&self, record: u64) {
        let mut state = self.lock();
        while state.reached < record {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether its last record was reached.
    pub fn is_done(&self) -> bool {
        let state = self.lock();
        state.reached >= state.recorded
    }

    /// When that was; nothing where it was never recorded.
    pub fn when(&self) -> Option<Instant> {
        self.lock().when
    }
}

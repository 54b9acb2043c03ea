//! Costs of copies to the store: the budget with a clock, shared by all spaces, and its line in the log.

use crate::budget::{Budget, Cost};
use crate::config::CopyOut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Minimum time between two lines in the log about a budget that is used up, which may last for days.
const QUIET: Duration = Duration::from_secs(3600);

/// The spending of a relay.
#[derive(Debug)]
pub struct Spending {
    started: Instant,
    /// The configuration has a limit.
    limited: bool,
    /// The last copy had to wait.
    short: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    budget: Budget,
    logged: Option<Instant>,
}

impl Spending {
    /// Begin with the limits of the configuration.
    pub fn new(settings: &CopyOut) -> Spending {
        let budget = Budget::new(settings.bytes_per_day, settings.requests_per_day);
        let limited = settings.bytes_per_day.is_some() || settings.requests_per_day.is_some();
        let state = Mutex::new(State { budget, logged: None });
        Spending { started: Instant::now(), limited, short: AtomicBool::new(false), state }
    }

    /// Return whether there is a limit.
    pub fn is_limited(&self) -> bool {
        self.limited
    }

    /// Return whether copies wait for the budget.
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Charge a copy, or return how long none is admitted.
    ///
    /// # Errors
    /// The time to wait.
    pub fn take(&self, cost: Cost) -> Result<(), Duration> {
        if !self.limited {
            return Ok(());
        }
        let mut state = self.lock();
        let taken = state.budget.take(self.started.elapsed(), cost);
        self.short.store(taken.is_err(), Ordering::Relaxed);
        // The first moment of a relay is no shortage: the budget begins empty.
        if taken.is_err() && self.started.elapsed() > QUIET / 60 && state.logged.is_none_or(|at| at.elapsed() >= QUIET)
        {
            state.logged = Some(Instant::now());
            tracing::warn!(
                "the budget of copies to the store is used up for now; runs of the longest prefixes go first. Raise bytes_per_day or \
                 requests_per_day ([copy_out]) if blocks are missing on other machines"
            );
        }
        taken
    }

    /// Return what a copy was charged and did not cost.
    pub fn give_back(&self, cost: Cost) {
        self.lock().budget.give_back(cost);
    }

    /// Return the bytes and requests that are left.
    pub fn left(&self) -> (Option<u64>, Option<u64>) {
        self.lock().budget.left()
    }

    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

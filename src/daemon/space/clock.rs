//! The core's clock: microseconds since the core thread started.

use std::time::{Duration, Instant};

/// A clock that starts at zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// Start the clock.
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// Return the microseconds since the start.
    pub fn now_us(&self) -> u64 {
        self.of(Instant::now())
    }

    /// Convert a time; times before the start become zero.
    pub fn of(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.start).as_micros() as u64
    }
}

/// Return the time from one reading to another; zero if that has passed.
pub(crate) fn until(now_us: u64, then_us: u64) -> Duration {
    Duration::from_micros(then_us.saturating_sub(now_us))
}

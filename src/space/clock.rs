//! The core's time: microseconds since the core thread began.

use std::time::{Duration, Instant};

/// A clock that starts at zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts now.
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// Microseconds since the start.
    pub fn now_us(&self) -> u64 {
        self.of(Instant::now())
    }

    /// The same for another moment; before the start it is zero.
    pub fn of(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.start).as_micros() as u64
    }
}

/// How long it is from one reading to another; nothing if that has passed.
pub(crate) fn until(now_us: u64, then_us: u64) -> Duration {
    Duration::from_micros(then_us.saturating_sub(now_us))
}

//! Time of a space's copies: how long recalls take, and when the store is left alone.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Pause after a run that the store did not take, doubled up to a maximum until it takes one.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// Pause of a space's copies. The breaker alone would not do: a store that answers reads and fails writes keeps it closed.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    until: Option<Instant>,
    length: Duration,
    /// Runs that the store took.
    pub taken: u64,
}

impl Pause {
    /// Return how long the pause still is.
    pub fn left(&self) -> Option<Duration> {
        self.until?.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// The store did not take a run.
    pub fn failed(&mut self) {
        // Copies that were in flight together are one failure.
        if self.left().is_none() {
            self.length = (self.length * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            self.until = Some(Instant::now() + self.length);
        }
    }

    /// The store took a run.
    pub fn took_one(&mut self) {
        *self = Pause { taken: self.taken + 1, ..Pause::default() };
    }
}

/// Mean time in which a recall brings in a block, over the last few.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<Option<(Duration, Instant)>>);

/// Time after which a measurement is not used any more: engines that give up because of a slow one would never cause another.
const PACE_KEPT: Duration = Duration::from_secs(10);

impl Pace {
    /// Add a measurement.
    pub fn measured(&self, blocks: usize, took: Duration) {
        let now = took / blocks.max(1) as u32;
        let mean = self.mean().map_or(now, |before| (7 * before + now) / 8);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((mean.max(Duration::from_nanos(1)), Instant::now()));
    }

    fn mean(&self) -> Option<Duration> {
        let measured = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        measured.filter(|(_, at)| at.elapsed() < PACE_KEPT).map(|(mean, _)| mean)
    }

    /// Return the expected time of this number of blocks; `None` without a measurement.
    pub fn of(&self, blocks: usize) -> Option<Duration> {
        self.mean().map(|each| each.saturating_mul(u32::try_from(blocks).unwrap_or(u32::MAX)))
    }
}

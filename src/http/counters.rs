//! Counters of HTTP faults, shared by all that count them.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of HTTP faults since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HttpTotals {
    /// Requests answered with 500 because their handler panicked.
    pub panics: u64,
    /// Connections closed to make room for others.
    pub dropped_connections: u64,
    /// Requests refused: their client may not do what they ask, or they name another host.
    pub refused: u64,
}

/// The counters, shared by all clones.
#[derive(Clone, Debug, Default)]
pub struct HttpCounters(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    panics: AtomicU64,
    dropped_connections: AtomicU64,
    refused: AtomicU64,
}

impl HttpCounters {
    /// Count a panic of a handler. Return the number so far, including this one.
    pub fn panicked(&self) -> u64 {
        self.0.panics.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Count a connection closed to make room for another.
    pub fn dropped(&self) {
        self.0.dropped_connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Count a refused request.
    pub fn refused(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Return the current values.
    pub fn totals(&self) -> HttpTotals {
        HttpTotals {
            panics: self.0.panics.load(Ordering::Relaxed),
            dropped_connections: self.0.dropped_connections.load(Ordering::Relaxed),
            refused: self.0.refused.load(Ordering::Relaxed),
        }
    }
}

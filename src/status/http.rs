//! Counters of the HTTP server, which another thread reads for the snapshot.

use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of HTTP faults since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct HttpTotals {
    /// Requests that were answered with 500 because their handler panicked.
    pub panics: u64,
    /// Connections that were closed because others needed their places.
    pub dropped_connections: u64,
}

/// The counters; clones are the same ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpCounters(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    panics: AtomicU64,
    dropped_connections: AtomicU64,
}

impl HttpCounters {
    /// A handler panicked. Returns how many have, this one included.
    pub fn panicked(&self) -> u64 {
        self.0.panics.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A connection was closed because another one needed its place.
    pub fn dropped(&self) {
        self.0.dropped_connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Their values.
    pub fn totals(&self) -> HttpTotals {
        HttpTotals {
            panics: self.0.panics.load(Ordering::Relaxed),
            dropped_connections: self.0.dropped_connections.load(Ordering::Relaxed),
        }
    }
}

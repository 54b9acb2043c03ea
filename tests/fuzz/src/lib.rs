//! Shared by the fuzz targets: a cursor over the fuzzer's bytes, rings in private memory, and the modules for configuration,
//! traces, runs, bodies of HTTP and ZMTP.
//!
//! Those modules belong to `kvtide-daemon`, `kvtide-http`, `kvtide-trace`, `kvtide-bench` and `kvtide-relay`. A dependency on these would build and instrument all its dependencies (command line,
//! HTTP, terminal), so their source is compiled here instead.

/// The daemon's configuration.
#[path = "../../../src/daemon/config/mod.rs"]
#[allow(dead_code)] // no target looks at this machine
pub mod config;

#[path = "../../../benches/replay/trace/mod.rs"]
#[allow(dead_code)] // a replay looks at more of them
pub mod trace;

/// Names and keys of runs in a store.
#[path = "../../../src/relay/name.rs"]
#[allow(dead_code)] // the relay uses all of them
pub mod name;

/// The format of runs.
#[path = "../../../src/relay/run.rs"]
#[allow(dead_code)] // the relay uses all of it
pub mod run;

/// Bodies of the relay's HTTP.
#[path = "../../../src/relay/requests.rs"]
#[allow(dead_code)] // the relay uses all of it
pub mod requests;

/// The protocol of the relay's sockets for KV events.
#[path = "../../../src/relay/events/zmtp.rs"]
#[allow(dead_code)] // the relay uses all of it
pub mod zmtp;

/// The check of log directives, under the path that the configuration's source has for it.
#[path = "../../../src/http/log/directives.rs"]
pub mod log;
extern crate self as kvtide_http;

/// The check of a collector's URL, likewise.
#[path = "../../../src/trace/endpoint.rs"]
#[allow(dead_code)] // the exporter appends the path
mod endpoint;
pub use endpoint::check_url;
extern crate self as kvtide_trace;

use kvtide_wire::ring::{IndexLine, Memory, Slot};
use kvtide_wire::sync::{AtomicU32, Ordering};
use std::sync::Arc;

/// Consumes the fuzzer's bytes from front to back; returns zeros after their end.
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    /// Return the next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let (taken, rest) = self.0.split_at(N.min(self.0.len()));
        array[..taken.len()].copy_from_slice(taken);
        self.0 = rest;
        array
    }

    /// Return the next byte.
    pub fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Return the next four bytes.
    pub fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Return whether all bytes are consumed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A ring in private memory that a hostile peer may overwrite.
#[derive(Clone)]
pub struct HeapRing(Arc<(Vec<Slot>, IndexLine, IndexLine)>);

impl HeapRing {
    /// Create a ring of `entries` slots, a power of two.
    pub fn new(entries: usize) -> HeapRing {
        HeapRing(Arc::new(((0..entries).map(|_| Slot::new()).collect(), IndexLine::new(), IndexLine::new())))
    }

    /// Overwrite a slot.
    pub fn scribble(&self, slot: usize, bytes: [u8; 64]) {
        for (word, bytes) in self.0.0[slot % self.0.0.len()].words.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
    }
}

impl Memory for HeapRing {
    fn slots(&self) -> &[Slot] {
        &self.0.0
    }
    fn tail(&self) -> &AtomicU32 {
        &self.0.1.index
    }
    fn head(&self) -> &AtomicU32 {
        &self.0.2.index
    }
}

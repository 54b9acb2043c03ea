//! Engines with memory of their own: they look prefixes up, lease them, load them, bring them up, and store what is new.
//!
//! - `memory`: an engine's own blocks, which it numbers itself, and the leases that it holds
//! - `ask`: the requests, and what is noted for their answers
//! - `answers`: what an answer brings, compared with the plain model
//! - `explain`: which errors may be
//! - `probe`: the daemon's side: whether what it finds is closed under ancestors
//!
//! Called by `requests` and `answers`; a session with a tier 0 does it beside all else, one without does nothing else.

mod answers;
mod ask;
mod explain;
mod memory;
mod probe;

pub use memory::{Lease, OwnMemory};

use kvtide_wire::entry::Level;

/// What a request on blocks was for, beside what every request notes.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The engine's own blocks, which nothing else uses until the answer has come.
    pub names: Vec<u32>,
    /// Lookup: index in the prefix of each probe.
    pub probes: Vec<u32>,
    /// Of the probes, or of the blocks to store, in order.
    pub hashes: Vec<u128>,
    /// Lookup, lease: so many of the prefix's first blocks must be found if nothing went. Store: so many of those before its own this shard was
    /// told of.
    pub known: u32,
    /// Blocks of the prefix.
    pub whole: u32,
    /// Lease: the channel whose thread will own it.
    pub channel: usize,
    /// The lease does not end by itself before.
    pub until_us: u64,
    /// The lease was given up while the request was in flight.
    pub dropped: bool,
    /// It is about a sequence that steps read, not about a lease.
    pub of_sequence: bool,
    /// How well the blocks are to be kept.
    pub level: Option<Level>,
}

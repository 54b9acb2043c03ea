//! Engines with their own memory: they look prefixes up, lease and load them, and store new blocks.
//!
//! - `memory`: an engine's own blocks with its own ids, and its leases
//! - `ask`: the requests, and the data recorded for their responses
//! - `answers`: results of responses, compared with the plain model
//! - `explain`: allowed errors
//! - `probe`: the daemon's side: whether its lookups are closed under ancestors
//!
//! Called by `requests` and `answers`. A session with a tier 0 does it besides its other actions; a session without one does
//! nothing else.

mod answers;
mod ask;
mod explain;
mod memory;
mod probe;

pub use memory::{Lease, OwnMemory};

use kvtide_wire::entry::Level;

/// Data of a request on blocks, besides the data of every request.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The engine's own blocks, which nothing else uses until the response has come.
    pub names: Vec<u32>,
    /// Lookup: index in the prefix of each probe.
    pub probes: Vec<u32>,
    /// Hashes of the probes, or of the blocks to store, in order.
    pub hashes: Vec<u128>,
    /// Lookup, lease: first blocks of the prefix that must be found if nothing was dropped. Store: blocks before its own that this
    /// shard knows to be published.
    pub known: u32,
    /// Blocks of the prefix.
    pub whole: u32,
    /// Lease: the channel of the thread that will own it.
    pub channel: usize,
    /// Earliest time of the lease's expiry.
    pub until_us: u64,
    /// The lease was dropped while the request was in flight.
    pub dropped: bool,
    /// It concerns a sequence that steps read, not a lease.
    pub of_sequence: bool,
    /// Requested durability of the blocks.
    pub level: Option<Level>,
}

//! Requests in asynchronous form, and their results.

use super::{
    channel::{Events, Found},
    options::SeqId,
};
use crate::agent::attention::Contract;
use kvtide_wire::{
    entry::{Advice, Level},
    status::Status,
};
use std::time::Duration;

pub use crate::agent::protocol::PageRange;

/// A request for [`super::Channel::submit`]. Each has a blocking form of the same name, which describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // described at the blocking forms
pub enum Request<'a> {
    Nop,
    Reserve {
        seq: SeqId,
        tokens: u64,
    },
    Fork {
        seq: SeqId,
    },
    Truncate {
        seq: SeqId,
        tokens: u64,
    },
    Publish {
        seq: SeqId,
        first: u32,
        parent: u128,
        hashes: &'a [u128],
        level: Level,
    },
    AttachPrefix {
        seq: SeqId,
        hashes: &'a [u128],
        /// A lookup has asked for the prefix: statistics do not count it a second time.
        looked_up: bool,
    },
    Park {
        seq: SeqId,
        due: Duration,
    },
    Resume {
        seq: SeqId,
    },
    Advise {
        seq: SeqId,
        first: u32,
        count: u32,
        advice: Advice,
    },
    Contract {
        seq: SeqId,
        contract: Contract,
    },
    Acquire {
        range: PageRange,
    },
    Tier0Resize {
        class: usize,
        frames: u32,
    },
    Lookup {
        hashes: &'a [u128],
    },
    Lease {
        hash: u128,
        count: u32,
        time: Duration,
    },
    Load {
        lease: SeqId,
        first: u32,
        blocks: &'a [u32],
    },
    Store {
        first: u32,
        parent: u128,
        hashes: &'a [u128],
        blocks: &'a [u32],
        level: Level,
    },
}

/// Result of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Completed without a value.
    Done,
    /// The child of a fork.
    Seq(SeqId),
    /// The level that a publish reached.
    Level(Level),
    /// Number of blocks attached to a sequence.
    Blocks(usize),
    /// A pin of pages.
    Pin(Pin),
    /// Number of tier-0 frames that a size class has now.
    Frames(u32),
    /// Result of a complete lookup.
    Prefix(Found),
    /// A lease.
    Lease(Leased),
    /// Result of a load or store.
    Copied {
        /// Indices, within the request, of the blocks that were not copied. After a load the bytes of these blocks are undefined.
        failed: Vec<u32>,
        /// `Ok` if no block failed. Otherwise why the first block failed, or why the request ended early.
        status: Status,
        /// For a store: the level that all blocks reached.
        level: Level,
    },
    /// A part of a feed, or of a listing, for a relay.
    Events(Events),
}

/// A cached prefix, held for a limited time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leased {
    /// Id of the lease: [`super::Channel::drop_seq`] ends it early.
    pub seq: SeqId,
    /// Number of blocks in host memory.
    pub in_host: u32,
    /// Number of blocks on NVMe only.
    pub on_nvme: u32,
    /// Number of blocks that only the tier 0 of other sessions holds.
    pub elsewhere: u32,
    /// Estimated time to load all blocks, from measured rates; zero if nothing was measured.
    pub load: Duration,
}

/// A request in flight. Consumed by [`super::Channel::wait`], or when [`super::Channel::poll_any`] returns its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// Return the ticket as a number, for the C ABI.
    #[must_use]
    pub const fn into_raw(self) -> u64 {
        self.0
    }

    /// Restore a ticket from [`Ticket::into_raw`]. Any other number gives an unknown ticket, which calls reject.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Ticket {
        Ticket(raw)
    }
}

/// Pinned pages. Released by [`super::Channel::release`]; if the pin is dropped, the pages stay pinned until the sequence is
/// dropped.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "pages stay pinned until the pin is released"]
pub struct Pin(pub(crate) u64);

impl Pin {
    /// Return the pin as a number, for the C ABI.
    #[must_use]
    pub const fn into_raw(self) -> u64 {
        self.0
    }

    /// Restore a pin from [`Pin::into_raw`]. A number that was released before is rejected with `Status::State`.
    pub const fn from_raw(raw: u64) -> Pin {
        Pin(raw)
    }
}

/// The end of a request, as returned by [`super::Channel::poll_any`].
#[derive(Debug)]
pub struct Completed {
    /// The request.
    pub ticket: Ticket,
    /// The caller's value from the submission.
    pub user: u64,
    /// The result.
    pub result: super::Result<Outcome>,
}

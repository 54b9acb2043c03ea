//! Requests in their asynchronous form, and what they end with.

use super::{channel::Found, options::SeqId};
use crate::agent::attention::Contract;
use kvtide_wire::{
    entry::{Advice, Level},
    status::Status,
};
use std::time::Duration;

pub use crate::agent::protocol::PageRange;

/// What [`super::Channel::submit`] asks for; each has a blocking form of the same name, where it is described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // described once, at the blocking forms
pub enum Request<'a> {
    Nop,
    Reserve {
        seq: SeqId,
        tokens: u64,
    },
    ReserveSession {
        blocks: u32,
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
    Map {
        seq: SeqId,
        hashes: &'a [u128],
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
        value: u32,
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
    /// A lookup's one round.
    Lookup {
        probes: &'a [u128],
    },
    /// [`super::Channel::lookup`], all of it.
    Search {
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
    Fetch {
        lease: SeqId,
        first: u32,
        count: u32,
    },
}

/// What a request ended with.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, nothing to say.
    Done,
    /// The child of a fork.
    Seq(SeqId),
    /// The level that a publish reached.
    Level(Level),
    /// Blocks reserved for the session, or attached by a map.
    Blocks(usize),
    /// Pages pinned.
    Pin(Pin),
    /// Tier-0 frames that a size class has now.
    Frames(u32),
    /// Of a lookup's probes, those that are cached, and of these those that are in host memory.
    Found {
        /// Cached, from the first on.
        blocks: u32,
        /// Of those, in host.
        in_host: u32,
    },
    /// What a lookup found.
    Prefix(Found),
    /// A lease that has begun.
    Lease(Leased),
    /// Blocks of the engine's own memory that were loaded, stored or fetched.
    Copied {
        /// Indices into the request's blocks of those that were not. After a load their bytes are undefined.
        failed: Vec<u32>,
        /// `Ok`: none failed. Else why the first one did, or the request ended.
        status: Status,
        /// Of a store: the level that all of them reached.
        level: Level,
    },
}

/// A cached prefix that stays for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leased {
    /// What holds it: [`super::Channel::seq_drop`] ends it before its time.
    pub seq: SeqId,
    /// Its blocks in host memory.
    pub in_host: u32,
    /// Its blocks on NVMe alone.
    pub on_nvme: u32,
    /// Its blocks that only other sessions' tier 0 has.
    pub elsewhere: u32,
    /// How long loading all of them takes, as far as that was measured; zero where nothing was.
    pub load: Duration,
}

/// A request in flight. Spent by [`super::Channel::wait`], or when [`super::Channel::poll_any`] reported its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// The ticket as a number, for the C ABI.
    #[must_use]
    pub const fn into_raw(self) -> u64 {
        self.0
    }

    /// The ticket of a number that [`Ticket::into_raw`] gave; any other number is an unknown ticket, which calls refuse.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Ticket {
        Ticket(raw)
    }
}

/// Pinned pages. Given back by [`super::Channel::release`]; dropping it keeps the pages pinned until the sequence is dropped.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "pages stay pinned until the pin is released"]
pub struct Pin(pub(crate) u64);

impl Pin {
    /// The pin as a number, for the C ABI.
    #[must_use]
    pub const fn into_raw(self) -> u64 {
        self.0
    }

    /// The pin of a number that [`Pin::into_raw`] gave. A number released before is refused with `Status::State`.
    pub const fn from_raw(raw: u64) -> Pin {
        Pin(raw)
    }
}

/// The end of a request, as [`super::Channel::poll_any`] reports it.
#[derive(Debug)]
pub struct Completed {
    /// Which request.
    pub ticket: Ticket,
    /// The caller's own word, given with the request.
    pub user: u64,
    /// How it ended.
    pub result: super::Result<Outcome>,
}

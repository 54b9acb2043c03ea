//! What operators ask of a space: find a block, or why it is not cached; pin it, evict it.

use crate::trace::TracedLookup;
use kvtide_tiering::api::Event;
use kvtide_tiering::{Absence, EntryStatus};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A question or an action of an operator.
#[derive(Debug)]
pub(crate) struct Operate {
    /// What to do.
    pub operation: Operation,
    /// Receives the result.
    pub answer: oneshot::Sender<Operated>,
}

/// What operators ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Find the block with this hash, or why it is not found.
    Find(u128),
    /// Pin the prefix that ends with this block.
    Pin(u128),
    /// Unpin it.
    Unpin(u128),
    /// Evict a block with all blocks after it, or all blocks: a limited number at a time.
    Evict(Option<u128>),
}

/// The result.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operated {
    /// The block that was named, as it is now.
    pub entry: Option<EntryStatus>,
    /// Why lookups do not find it, and the time since [`Absence::at_us`]; `None` if they do.
    pub absence: Option<(Absence, Duration)>,
    /// The last lookup of the traced request with this number in place of a hash, and the time since.
    pub lookup: Option<(TracedLookup, Duration)>,
    /// The space has forgotten no absence in this time.
    pub known: Duration,
    /// Identity of the last engine of the space that has one.
    pub identity: Arc<str>,
    /// Numbers of the sessions that use it.
    pub sessions: Vec<u32>,
    /// Blocks evicted by this operation.
    pub evicted: u64,
    /// Cached blocks that are left in the space.
    pub left: u32,
    /// Maximum number of blocks in pinned prefixes.
    pub pinned_max: u32,
}

impl Operation {
    /// Return the block that it names, and its event for the core.
    pub fn event(self) -> (Option<u128>, Option<Event<'static>>) {
        match self {
            Operation::Find(hash) => (Some(hash), None),
            Operation::Pin(hash) => (Some(hash), Some(Event::Pin { hash, pinned: true })),
            Operation::Unpin(hash) => (Some(hash), Some(Event::Pin { hash, pinned: false })),
            Operation::Evict(hash) => (hash, Some(Event::Evict { hash })),
        }
    }
}

//! What operators ask of a space: find a block, or why it is not cached; pin it, evict it.

use super::serve::Space;
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

impl Space {
    /// Execute an operation, and answer it.
    pub fn operate(&mut self, now_us: u64, asked: Operate) {
        let before = self.core.counters().evicted_by_hand;
        let hash = match asked.operation {
            Operation::Find(hash) => Some(hash),
            Operation::Pin(hash) => {
                self.tell(now_us, Event::Pin { hash, pinned: true });
                Some(hash)
            }
            Operation::Unpin(hash) => {
                self.tell(now_us, Event::Pin { hash, pinned: false });
                Some(hash)
            }
            Operation::Evict(hash) => {
                self.tell(now_us, Event::Evict { hash });
                hash
            }
        };
        let entry = hash.and_then(|hash| self.core.entry(hash));
        let absence = hash.and_then(|hash| self.core.absence(hash));
        let since = |at_us: u64| Duration::from_micros(now_us.saturating_sub(at_us));
        // The digits of a trace id are a number, those of a hash its bytes, lowest first.
        let lookup = hash.and_then(|hash| self.tracer.as_ref()?.lookup_of(hash.swap_bytes()));
        let users = entry.iter().flat_map(|entry| entry.sessions.iter().copied());
        let sessions = users.filter_map(|id| Some(self.session_entries.peer(id)?.number)).collect();
        // The operator may have stopped waiting.
        let _ = asked.answer.send(Operated {
            sessions,
            entry,
            absence: absence.map(|absence| (absence, since(absence.at_us))),
            lookup: lookup.map(|lookup| (lookup, since(lookup.at_us))),
            known: since(self.core.absences_known_since_us()),
            identity: Arc::clone(&self.identity),
            evicted: self.core.counters().evicted_by_hand - before,
            left: self.core.occupancy().published,
            pinned_max: self.core.pinned_max(),
        });
    }
}

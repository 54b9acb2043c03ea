//! The cache by hash: which blocks are cached, in which order they leave, and who is told.
//!
//! - `entries`: shard copies of entries, eviction, removal
//! - `stores`: parents of stores in progress, which are evicted last
//! - `partial`: entries without some pages of windows
//! - `publishes`: publishes that wait until their blocks are stored
//! - `feed`: changes of the cache, for relays
//! - `hits`, `why`: what readers asked for and got, and why blocks are not cached
//! - `operator`: what operators ask about a block
//!
//! It promises that an entry leaves with its descendants, deepest first, by [`PrefixIndex::remove_entry`] alone, and that the feed and the
//! history hear of it. It does not choose what is stored where.
//!
//! Invariants: the parent of an entry is an entry; a block's `entry` and the entry's copies name each other.

#[cfg(test)]
mod complexity;
mod entries;
mod feed;
mod hits;
mod operator;
mod partial;
mod publishes;
mod stores;
mod why;

pub(crate) use entries::EXAMINED_MAX;
pub(crate) use feed::Feed;
pub(crate) use hits::{From, Reader};
pub use operator::EntryStatus;
pub(crate) use why::why_not_stored;

use crate::api::SessionId;
use crate::blocks::BlockTable;
use crate::layer::stands_on;
use crate::sessions::{Life, PerSession};
use serde::{Deserialize, Serialize};

/// The cache by hash: which blocks are cached, in which order they leave, and who is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PrefixIndex {
    below: BlockTable,
    /// Changes of the cache for relays, while a session follows them.
    feed: Option<Box<Feed>>,
    readers: PerSession<Reader>,
}

stands_on!(PrefixIndex, BlockTable);

impl PrefixIndex {
    pub fn new(below: BlockTable) -> PrefixIndex {
        let readers = PerSession::new(below.cfg().limits.sessions_max);
        PrefixIndex { below, feed: None, readers }
    }

    /// End a session.
    pub fn detach(&mut self, s: SessionId, life: Life) {
        self.readers[s] = Reader::default();
        self.below.detach(s, life);
    }

    /// Return the bytes of all tables, from their allocated capacities.
    pub fn bytes(&self) -> usize {
        self.below.bytes() + self.readers.bytes() + self.feed.as_ref().map_or(0, |feed| feed.bytes())
    }
}

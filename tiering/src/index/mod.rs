//! Index of the cache: which blocks are cached, in which order they are evicted, and why others are not cached.
//!
//! - `table`: entries by hash, their ancestors and descendants, pinned prefixes
//! - `entry`: record of an entry
//! - `shard_copy`: a shard's copy of an entry, in a block or only in a slot
//! - `evict`: the eviction order of unreferenced entries
//! - `absences`: history of blocks that are not cached
//!
//! All fields are private to this folder. It knows entries by id, and copies by the id of a block or slot. It does not know pages, tiers,
//! sessions or requests: its callers decide what is evicted, and tell it when copies gain or lose a block, a reference or a use.

mod absences;
mod entries;
mod entry;
pub mod evict;
mod feed;
mod hits;
mod operator;
mod partial;
mod publishes;
mod shard_copy;
mod stores;
mod table;
mod why;

pub use absences::Absence;
pub(crate) use entries::EXAMINED_MAX;
pub(crate) use feed::Feed;
pub(crate) use hits::{From, Reader};
pub use operator::EntryStatus;
pub(crate) use shard_copy::{IDS_MAX, Link, ShardCopy};
pub(crate) use table::Index;
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
    pub(crate) feed: Option<Box<Feed>>,
    pub(crate) readers: PerSession<Reader>,
}

stands_on!(PrefixIndex, BlockTable);

impl PrefixIndex {
    pub fn new(below: BlockTable) -> PrefixIndex {
        let readers = PerSession::new(below.cfg.limits.sessions_max);
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

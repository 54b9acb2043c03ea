//! Calls of relays: follow the feed of a space, list its cache, read blocks by their hashes. The session must have attached
//! as a relay ([`Options::relay`](crate::Options::relay)), else these calls fail with `Permission`.

use super::{
    Channel, Copied,
    ops::{FeedPart, LoadHashed},
};
use crate::client::{Result, request::Outcome};
use kvtide_types::FeedEvent;
use kvtide_wire::status::Status;
use std::time::Duration;

/// A part of a feed or of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    /// The events, in order.
    pub events: Vec<FeedEvent>,
    /// Of a feed: number of the event after the last one. Of a listing: the next cursor; 0 after the last part.
    pub next: u64,
}

impl Channel {
    /// Wait at most `timeout` for events of the space's feed, from number `from` on. Without any, return none. The first call of a
    /// session returns [`FeedEvent::Gap`], whatever its `from`: the reader lists the cache then.
    ///
    /// # Errors
    /// `Permission`. See [`Channel`].
    pub fn follow(&mut self, from: u64, timeout: Duration) -> Result<Events> {
        let events = |outcome| if let Outcome::Events(events) = outcome { Some(events) } else { None };
        match self.blocking(FOLLOW, from, FeedPart::Follow { from }, timeout, events) {
            Err(error) if error.status() == Status::TimedOut => Ok(Events { events: Vec::new(), next: from }),
            result => result,
        }
    }

    /// List a part of the cache, as the events that would have led to it. `cursor`: 0, then [`Events::next`] of the part
    /// before. A block that comes or goes meanwhile may be missing or not; events of the feed after the listing began tell.
    ///
    /// # Errors
    /// `Permission`. See [`Channel`].
    pub fn list_blocks(&mut self, cursor: u64, timeout: Duration) -> Result<Events> {
        let events = |outcome| if let Outcome::Events(events) = outcome { Some(events) } else { None };
        self.blocking(LIST, cursor, FeedPart::List { cursor }, timeout, events)
    }

    /// Copy the cached blocks of `hashes` into `blocks` of the relay's memory, each whole or not at all. It counts as no use of them.
    ///
    /// # Errors
    /// As [`Channel::load`]. `Permission`. The failure of single blocks is no error: [`Copied::failed`] lists them (`NotFound`: it
    /// is not cached; `Lost`: pages of it are missing; `NoSpace`: it is on NVMe, and host memory has no room to read it).
    pub fn load_hashed(&mut self, hashes: &[u128], blocks: &[u32], timeout: Duration) -> Result<Copied> {
        let on = hashes.len() as u64;
        self.blocking(LOAD_HASHED, on, LoadHashed { hashes, blocks }, timeout, Copied::of)
    }
}

pub(super) const FOLLOW: &str = "follow the feed from event";
pub(super) const LIST: &str = "list cached blocks from cursor";
pub(super) const LOAD_HASHED: &str = "load blocks by their hashes, count";

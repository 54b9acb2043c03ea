//! Feed: changes of the cache, for relays. The core never waits for a reader: the feed keeps the last events.

use crate::actions::{ActionBuf, LIST_MAX};
use crate::api::{FeedEvent, NONE};
use crate::index::PrefixIndex;
use crate::mutants::{self, Mutant};
use crate::sessions::Phase;
use crate::tables::disk::Logged;
use crate::tables::index::ShardCopy;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Events that the feed keeps: a reader may be this far behind.
const EVENTS_MAX: usize = 1 << 16;

/// The last events of a space. It exists while a session follows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Feed {
    /// Encoded: smaller than the events, and what a completion lists.
    events: VecDeque<[u32; FeedEvent::WORDS]>,
    /// Number of the next event.
    next: u64,
    /// Sessions with a request that waits for an event.
    waiting: Vec<u16>,
    /// The session that stores blocks now is a relay.
    relayed: bool,
}

impl Default for Feed {
    fn default() -> Feed {
        Feed { events: VecDeque::with_capacity(EVENTS_MAX), next: 0, waiting: Vec::new(), relayed: false }
    }
}

impl Feed {
    fn push(&mut self, event: FeedEvent) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event.encode());
        self.next += 1;
    }

    /// Return whether a reader of the events before number `from` must wait for one. Then its session is told when there is one.
    pub fn waits(&mut self, s: u16, from: u64) -> bool {
        let waits = from == self.next;
        if waits && !self.waiting.contains(&s) {
            self.waiting.push(s);
        }
        waits
    }

    /// Write the events from number `from` on, as many as fit. Return the number after the last one.
    pub fn write(&self, from: u64, buf: &mut ActionBuf) -> u64 {
        let Some(place) = self.place(from) else {
            FeedEvent::Gap.encode().into_iter().for_each(|word| buf.push_word(word));
            return self.next;
        };
        let room = LIST_MAX.min(buf.words_room()) / FeedEvent::WORDS;
        let events = self.events.range(place..).take(room);
        let count = events.len() as u64;
        events.flatten().for_each(|&word| buf.push_word(word));
        from + count
    }

    /// Return the place of the event with this number; `None` if it was dropped or has never been.
    fn place(&self, number: u64) -> Option<usize> {
        let behind = self.next.checked_sub(number)? as usize;
        self.events.len().checked_sub(behind)
    }

    /// Return the bytes of its events, from their allocated capacity.
    pub fn bytes(&self) -> usize {
        self.events.capacity() * size_of::<[u32; FeedEvent::WORDS]>()
    }
}

impl PrefixIndex {
    /// Return whether a session has asked for events.
    pub(crate) fn follows(&self, s: u16) -> bool {
        self.readers[s].follows
    }

    /// A session asks for events. Return whether it must wait for one.
    pub(crate) fn follow(&mut self, s: u16, from: u64) -> bool {
        self.readers[s].follows = true;
        self.feed.get_or_insert_default().waits(s, from)
    }

    /// Return the events, if a session follows them.
    pub(crate) fn events(&self) -> Option<&Feed> {
        self.feed.as_deref()
    }

    /// Add an event to the feed, if there is one.
    fn add_to_feed(&mut self, event: FeedEvent) {
        let Some(feed) = &mut self.feed else { return };
        feed.push(event);
        while let Some(s) = self.feed.as_mut().and_then(|feed| feed.waiting.pop()) {
            loop {
                let op = self.session(s).ops.following.head;
                if op == NONE {
                    break;
                }
                self.enter(s, op, Phase::Ready);
            }
            self.wake(s);
        }
    }

    /// Announce a block that has just got its part of a shard.
    pub(crate) fn announce_stored(&mut self, c: u32) {
        let Some(feed) = &self.feed else { return };
        if self.index.is_whole(c) || mutants::on(Mutant::FeedTellsPartial) {
            self.add_to_feed(self.stored_event(c, feed.relayed));
        }
    }

    pub(crate) fn stored_event(&self, c: u32, relayed: bool) -> FeedEvent {
        let [hash, parent] = self.index.hashes(c);
        FeedEvent::Stored { hash, parent, relayed }
    }

    /// Announce a block of which the record of a shard's part has just become valid.
    pub(crate) fn announce_recorded(&mut self, c: u32) {
        if self.feed.is_some() && c != NONE && self.is_whole_on_nvme(c) {
            self.add_to_feed(FeedEvent::Recorded { hash: self.index.hash(c) });
        }
    }

    /// Announce that a block leaves the index, unless it was never announced.
    pub(crate) fn announce_removed(&mut self, c: u32) {
        if self.feed.is_some() && self.index.is_whole(c) && !mutants::on(Mutant::FeedOmitsRemoved) {
            self.add_to_feed(FeedEvent::Removed { hash: self.index.hash(c) });
        }
    }

    /// Announce that a sequence got the prefix of `count` blocks that it begins with.
    pub(crate) fn announce_used(&mut self, s: u16, seq: u32, count: u32) {
        if self.feed.is_none() || count == 0 {
            return;
        }
        let c = self.block(self.seq_block(s, seq, count - 1)).entry;
        if c != NONE {
            self.add_to_feed(FeedEvent::Used { hash: self.index.hash(c), count });
        }
    }

    /// Announce that more is cached than the feed tells.
    pub(crate) fn announce_gap(&mut self) {
        let again = self.feed.as_ref().is_some_and(|feed| feed.events.back() == Some(&FeedEvent::Gap.encode()));
        if !again {
            self.add_to_feed(FeedEvent::Gap);
        }
    }

    /// A relay's session begins or has ended to store blocks.
    pub(crate) fn note_relayed(&mut self, s: u16, begins: bool) {
        let relayed = begins && self.readers[s].follows;
        if let Some(feed) = &mut self.feed {
            feed.relayed = relayed;
        }
    }

    /// Forget the feed once no session follows it.
    pub(crate) fn end_feed(&mut self, s: u16) {
        if !self.readers.iter().any(|reader| reader.follows) {
            self.feed = None;
        } else if let Some(feed) = &mut self.feed {
            feed.waiting.retain(|&waiting| waiting != s);
        }
    }

    /// Return whether all shards' parts of a block are on NVMe and recorded.
    pub(crate) fn is_whole_on_nvme(&self, c: u32) -> bool {
        let recorded = |copy| match copy {
            ShardCopy::Block(b) => self.is_recorded(b),
            ShardCopy::IndexOnly(at) => self.disk.logged(at) == Logged::Recorded,
            ShardCopy::End => false,
        };
        self.index.is_whole(c) && self.copies(c).all(recorded)
    }
}

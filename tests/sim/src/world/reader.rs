//! Readers of the feed, which do what a relay does: they follow the changes of the cache and list it. They hold nothing.
//!
//! A reader is a session without tier 0. It rests at times, forgets an answer and asks for the same events again, asks twice at
//! once, dies and is replaced by one that knows nothing, and starts anew after the death of its daemon. Each event is compared with
//! its view and with the engines' publications, and its view with a listing during which nothing happened.
//!
//! The cache changes while a reader lists it, so its view is exact only from the event on that was the next one when the listing
//! ended. It asks for that number by a position that no event has.
//!
//! An episode has a few hundred events, and the feed keeps 65,536: no reader may get a gap for being too slow. The gap of one that
//! was too slow is tested in `tiering/tests/feed.rs`.

use super::context::{Check, Context, wrong};
use super::requests::request;
use super::session::{Pending, Session};
use crate::coverage::Met;
use crate::failure::Caught;
use kvtide_tiering::api::FeedEvent as Fed;
use kvtide_wire::entry::{NONE_U32, Op};
use kvtide_wire::status::Status;
use std::collections::BTreeMap;

/// A position that no event has: the answer is a gap with the number of the next event.
const NOWHERE: u64 = u64::MAX;

/// Result of a check; the text has the observation and the expectation.
type Seen = Result<(), String>;

/// A cached block: the hash of its parent, and whether it is recorded on NVMe.
type Block = (u128, bool);

/// A listing in progress.
#[derive(Debug, Default)]
struct Listing {
    found: BTreeMap<u128, Block>,
    cursor: u64,
    ended: bool,
    /// A block that was listed twice.
    twice: Option<u128>,
    /// The engines had left when it began.
    last: bool,
}

/// State of a reader.
#[derive(Debug, Default)]
pub struct Reader {
    /// Number of the first event that is not in its view; `None`: it knows nothing.
    next: Option<u64>,
    view: BTreeMap<u128, Block>,
    /// Number of the event from which on the view is exact.
    exact_from: Option<u64>,
    listing: Option<Listing>,
    /// Events of the last answers, also of those that it forgot.
    heard: BTreeMap<u64, Fed>,
    /// Events below this number have happened.
    happened: u64,
    /// It asks for nothing until then.
    rests_until_us: u64,
    /// It rests for long.
    late: bool,
    /// Its view was compared with a listing after the engines had left.
    pub checked: bool,
}

impl Session {
    /// Let the reader ask for events, or list the cache.
    pub(super) fn read_feed(&mut self, cx: &mut Context, channel: usize) {
        let pending = self.channels[channel].pending.iter().flatten();
        let open = pending.filter(|p| !p.nonsense && matches!(p.op, Op::Follow | Op::ListBlocks)).count();
        let (now, last) = (cx.now(), self.draining);
        let Some(reader) = self.reader.as_mut().filter(|reader| channel == 0 && !reader.checked) else { return };
        let exact = reader.next.is_some_and(|next| reader.is_exact(next));
        let (op, at) = match (&reader.listing, reader.next) {
            // It waits for an event, and asks for the same one or for the number of the next one besides.
            (None, Some(next)) if open == 1 && cx.rng.chance(15) => (Op::Follow, cx.rng.pick(&[next, NOWHERE])),
            _ if open > 0 || (now < reader.rests_until_us && !last) => return,
            _ if !last && cx.rng.chance(20) => {
                (reader.rests_until_us, reader.late) = (now + cx.rng.between(2_000, 40_000), true);
                return;
            }
            (Some(listing), _) if !listing.ended => (Op::ListBlocks, listing.cursor),
            (Some(_), _) => (Op::Follow, NOWHERE),
            (None, Some(_)) if exact && cx.rng.chance(if last { 400 } else { 50 }) => {
                reader.listing = Some(Listing { last, ..Listing::default() });
                (Op::ListBlocks, 0)
            }
            (None, Some(next)) => (Op::Follow, next),
            // The first answer is a gap, also for a number that the feed has.
            (None, None) => (Op::Follow, [0, NOWHERE, cx.rng.below(1_000)][cx.rng.index(3)]),
        };
        let (mut entry, mut pending) = request(op, NONE_U32);
        (entry.value, pending.count) = (at, at);
        entry.timeout_us = if reader.next == Some(at) { cx.rng.between(1, 5_000) } else { 0 };
        if self.send(cx, channel, entry, &[], pending) && open > 0 {
            cx.coverage.met(Met::FeedAskedTwice);
        }
    }

    /// Handle the answer to a request of the reader.
    pub(super) fn feed_answered(
        &mut self,
        cx: &mut Context,
        pending: &Pending,
        (status, value, list): (Status, u64, &[u32]),
    ) -> Check {
        // Answers of a dead daemon are of no use with the next one.
        let (valid, last) = (self.alive && self.slot.is_some(), self.draining);
        let Some(reader) = self.reader.as_mut().filter(|_| valid) else { return Ok(()) };
        let (words, rest) = list.as_chunks::<{ Fed::WORDS }>();
        let events: Option<Vec<Fed>> = words.iter().map(|&words| Fed::decode(words).ok()).collect();
        reader.rests_until_us = cx.now() + cx.rng.between(0, 400);
        let (op, at) = (pending.op, pending.count);
        let seen = match (status, events.filter(|_| rest.is_empty())) {
            (Status::Canceled, _) => Ok(()),
            // It waited for an event.
            (Status::TimedOut, _) if op == Op::Follow && (reader.happened..NOWHERE).contains(&at) => Ok(()),
            (Status::Ok, Some(events)) if op == Op::ListBlocks => reader.listed(cx, at, value, &events),
            (Status::Ok, Some(events)) => reader.told(cx, at, value, &events, last),
            _ => {
                Err(format!("{status:?} with {list:?}, expected events; events below {} had happened", reader.happened))
            }
        };
        seen.or_else(|seen| wrong(Caught::WrongAnswer, format!("s{}: {op:?} at {at}: {seen}", self.index)))
    }
}

impl Reader {
    /// Return whether the view has been exact since the event before this one.
    fn is_exact(&self, number: u64) -> bool {
        self.exact_from.is_some_and(|from| number >= from)
    }

    /// Compare the events from number `from` on with those heard before, and read them.
    fn told(&mut self, cx: &mut Context, from: u64, value: u64, events: &[Fed], last: bool) -> Seen {
        let gap = events == [Fed::Gap];
        if gap != (from == NOWHERE || self.next.is_none()) {
            return Err(format!("{events:x?}, expected {}", if gap { "events: none was lost" } else { "a gap" }));
        }
        if gap && value < self.happened {
            return Err(format!("event {value} is the next one, and event {} had happened", self.happened - 1));
        }
        self.happened = self.happened.max(value);
        let Some(next) = self.next else {
            (self.next, self.listing) = (Some(value), Some(Listing::default()));
            return Ok(());
        };
        if gap {
            let listing = self.listing.take();
            return listing.map_or(Ok(()), |listing| self.end_listing(cx, listing, next, value));
        }
        if events.is_empty() || value != from + events.len() as u64 {
            return Err(format!("{} events and then event {value}, expected event {from}", events.len()));
        }
        let forgets = !last && cx.rng.chance(100);
        if forgets {
            cx.coverage.met(Met::FeedForgotten);
        }
        if std::mem::take(&mut self.late) && events.len() > 1 {
            cx.coverage.met(Met::FeedLate);
        }
        self.heard = self.heard.split_off(&from);
        for (number, &event) in (from..).zip(events) {
            if let Some(before) = self.heard.insert(number, event).filter(|before| *before != event) {
                return Err(format!("event {number} is {event:x?}, expected {before:x?} as before"));
            }
            if !forgets && self.next == Some(number) {
                self.take(cx, number, event).map_err(|seen| format!("event {number}, {event:x?}: {seen}"))?;
                self.next = Some(number + 1);
                cx.coverage.met(Met::FeedRead);
            }
        }
        Ok(())
    }

    /// Apply an event to the view.
    fn take(&mut self, cx: &Context, number: u64, event: Fed) -> Seen {
        let exact = self.is_exact(number);
        let said = |unlike: bool, seen: String| if exact && unlike { Err(seen) } else { Ok(()) };
        let view = &mut self.view;
        match event {
            Fed::Gap => Err("expected no gap".to_owned()),
            Fed::Stored { hash, parent, relayed } => {
                may_be_cached(cx, hash, relayed)?;
                said(parent != 0 && !view.contains_key(&parent), "expected its parent before it".to_owned())?;
                said(view.insert(hash, (parent, false)).is_some(), "expected it once, it is cached".to_owned())
            }
            Fed::Recorded { hash } => {
                let block = view.get_mut(&hash).map(|block| block.1 = true);
                said(block.is_none(), "expected a cached block".to_owned())
            }
            Fed::Used { hash, count } => {
                said(count == 0 || !view.contains_key(&hash), "expected a cached block".to_owned())
            }
            Fed::Removed { hash } => {
                said(view.remove(&hash).is_none(), "expected a cached block".to_owned())?;
                let child = view.iter().find(|(_, block)| exact && block.0 == hash);
                child
                    .map_or(Ok(()), |(child, _)| Err(format!("expected that its child {child:x} is removed before it")))
            }
        }
    }

    /// Read a part of a listing.
    fn listed(&mut self, cx: &Context, cursor: u64, value: u64, events: &[Fed]) -> Seen {
        let listing = self.listing.get_or_insert_default();
        if value != 0 && value <= cursor {
            return Err(format!("the next part is at {value}, expected it later"));
        }
        (listing.cursor, listing.ended) = (value, value == 0);
        for &event in events {
            match event {
                Fed::Stored { hash, parent, relayed } => {
                    may_be_cached(cx, hash, relayed)?;
                    let before = listing.found.insert(hash, (parent, false));
                    listing.twice = listing.twice.or(before.map(|_| hash));
                }
                Fed::Recorded { hash } if listing.found.contains_key(&hash) => {
                    listing.found.entry(hash).and_modify(|block| block.1 = true);
                }
                _ => return Err(format!("{event:x?}, expected cached blocks")),
            }
        }
        Ok(())
    }

    /// Compare a listing with the view, and replace the view with it. At its end event `after` was the next one.
    fn end_listing(&mut self, cx: &mut Context, listing: Listing, next: u64, after: u64) -> Seen {
        let Listing { found, twice, last, .. } = listing;
        cx.coverage.met(Met::FeedListed);
        if after == next {
            let orphan = found.iter().find(|(_, block)| block.0 != 0 && !found.contains_key(&block.0));
            if let Some((hash, block)) = orphan {
                return Err(format!("block {hash:x} is listed, expected its parent {:x} as well", block.0));
            }
            if let Some(hash) = twice {
                return Err(format!("block {hash:x} is listed twice, expected once"));
            }
            if self.is_exact(next) {
                // A disk that fails takes the copies of cached blocks away, and the feed has no event for it.
                let fails = !cx.faults.disk.none();
                let differs = |hash: &&u128| match (found.get(hash), self.view.get(hash)) {
                    (Some((seen, false)), Some((expected, true))) if fails => seen != expected,
                    (seen, expected) => seen != expected,
                };
                let mut hashes = found.keys().chain(self.view.keys());
                if let Some(hash) = hashes.find(differs) {
                    let [seen, expected] = [found.get(hash), self.view.get(hash)];
                    return Err(format!("block {hash:x} is listed as {seen:x?}, expected {expected:x?}"));
                }
                cx.coverage.met(Met::FeedCompared);
            }
            // A space with room for everything keeps all that was published.
            let kept = last && cx.geometry.roomy && cx.faults.none() && !cx.geometry.discards();
            if let Some(hash) = cx.library.all_done().filter(|hash| kept && !found.contains_key(hash)).min() {
                return Err(format!("block {hash:x} is not listed, expected it: it is published"));
            }
            self.checked = last;
        }
        (self.view, self.exact_from) = (found, Some(after));
        Ok(())
    }
}

/// Check that engines of all shards may have stored a block, and no relay.
fn may_be_cached(cx: &Context, hash: u128, relayed: bool) -> Seen {
    match (cx.library.may_find(hash), relayed) {
        (true, false) => Ok(()),
        (true, true) => Err("expected that no relay stored it".to_owned()),
        (false, _) => Err(format!("expected that every shard has published block {hash:x}")),
    }
}

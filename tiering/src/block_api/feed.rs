//! Feed: changes of the cache, for relays. The core never waits for a reader: the feed keeps the last events, and a reader that is
//! further behind gets [`FeedEvent::Gap`] and lists the cache again.

use crate::actions::{ActionBuf, LIST_MAX};
use crate::api::{FeedEvent, NONE, Status};
use crate::block_api::BlockApi;
use crate::index::EXAMINED_MAX;
use crate::mutants::{self, Mutant};
use crate::sessions::{Follow, Listing, Phase, Who};

impl BlockApi<'_> {
    /// Tell the events from number `from` on, or wait for one.
    pub(crate) fn follow(&mut self, who: Who, from: u64, due: u64) {
        let s = who.session;
        // Earlier changes are not in the feed, and `from` may be a number of another session's or another daemon's feed.
        let from = if self.follows(s) || mutants::on(Mutant::FeedTrustsNumber) { from } else { u64::MAX };
        let Some(op) = self.new_op(who, NONE, Follow { from }, due) else { return };
        let waits = self.below.follow(s, from);
        let phase = if waits { Phase::Following } else { Phase::Ready };
        self.enter(s, op, phase);
    }

    /// Write the events from number `from` on, as many as fit. Return the number after the last one.
    pub(crate) fn complete_follow(&self, from: u64, buf: &mut ActionBuf) -> (Status, u64) {
        let Some(feed) = self.events() else { return (Status::State, 0) };
        (Status::Ok, feed.write(from, buf))
    }

    /// Complete a request for a part of the listing. A part covers a limited number of index records, so it may be empty.
    pub(crate) fn list_blocks(&mut self, who: Who, cursor: u64, due: u64) {
        let Some(op) = self.new_op(who, NONE, Listing { cursor }, due) else { return };
        self.enter(who.session, op, Phase::Ready);
    }

    /// Write the events of the blocks from index record `cursor` on, as many as fit. Return the next cursor.
    pub(crate) fn complete_list(&self, cursor: u64, buf: &mut ActionBuf) -> (Status, u64) {
        let room = LIST_MAX.min(buf.words_room()) / FeedEvent::WORDS;
        let (mut listed, mut next) = (0, cursor as usize);
        let end = self.index.ids().min(next.saturating_add(EXAMINED_MAX));
        while next < end && listed + 2 <= room {
            let c = next as u32;
            next += 1;
            if !self.index.is_whole(c) {
                continue;
            }
            let recorded = FeedEvent::Recorded { hash: self.index.hash(c) };
            let recorded = self.is_whole_on_nvme(c).then_some(recorded);
            for event in std::iter::once(self.stored_event(c, false)).chain(recorded) {
                event.encode().into_iter().for_each(|word| buf.push_word(word));
                listed += 1;
            }
        }
        (Status::Ok, if next < self.index.ids() { next as u64 } else { 0 })
    }
}

//! Parts of a space's feed and of a listing of its cache, for relays.

use super::{
    Answered, Begin, Operation, Outcome, Refusal, Reply, Sequences, Session, Started, Status, WireRequest, Work,
};
use crate::client::channel::feed::Events;
use kvtide_types::FeedEvent;
use std::sync::Arc;

/// Which part.
#[derive(Clone, Copy, Debug)]
pub enum FeedPart {
    /// The feed, from event `from` on.
    Follow { from: u64 },
    /// The listing of the cache, from `cursor` on.
    List { cursor: u64 },
}

impl Begin for FeedPart {
    fn begin(self, _: &mut Sequences, _: &Arc<Session>) -> Result<Started, Refusal> {
        Ok(Started::Send(Work::FeedPart(self)))
    }
}

impl Operation for FeedPart {
    fn request(&self) -> WireRequest<'_> {
        match *self {
            FeedPart::Follow { from } => WireRequest::Follow { from },
            FeedPart::List { cursor } => WireRequest::ListBlocks { cursor },
        }
    }

    fn answered(&mut self, _: &mut Sequences, _: &Session, reply: &Reply) -> Answered {
        if reply.status != Status::Ok {
            return Err(reply.status);
        }
        let (events, rest) = reply.list.as_chunks::<{ FeedEvent::WORDS }>();
        if !rest.is_empty() {
            return Err(Status::Protocol);
        }
        let events = events.iter().map(|&words| FeedEvent::decode(words)).collect::<Result<_, _>>();
        let events = events.map_err(|_| Status::Protocol)?;
        Ok(Some(Outcome::Events(Events { events, next: reply.value })))
    }
}

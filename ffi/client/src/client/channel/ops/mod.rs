//! The operations of a channel, one file for each operation or family.
//!
//! A file has all of an operation: `begin` checks a call and makes its local changes, `request` is the message to the daemon,
//! `answered` applies the daemon's answer to the session's mirror, and `take_back` undoes `begin` if the message could not be sent.
//! An operation changes the channel's [`Sequences`] and knows neither tickets nor rings. Called by [`State`](super::State).

mod acquire;
mod advise;
mod attach_prefix;
mod copy;
mod feed;
mod fork;
mod lease;
mod lookup;
mod park;
mod publish;
mod reserve;
mod resize;
mod truncate;

use super::{
    blocks::{LOAD, STORE},
    feed::{FOLLOW, LIST, LOAD_HASHED},
    sequences::{Sequences, close},
};
use crate::{
    agent::session::Session,
    client::{
        Refusal,
        request::{Outcome, Request},
    },
};
use acquire::Acquire;
use attach_prefix::AttachPrefix;
use copy::CopyBlocks;
pub(super) use copy::LoadHashed;
pub(super) use feed::FeedPart;
use fork::Fork;
use kvtide_types::{BlockId, Hash, Level, Request as WireRequest, SeqId};
use kvtide_wire::{entry::LIST_WORDS, lists::HASHES_MAX, status::Status};
use lease::Lease;
use lookup::Lookup;
use park::{Park, Resume};
use publish::Publish;
use reserve::Reserve;
use resize::Resize;
use std::sync::Arc;
use truncate::Truncate;

/// Maximum blocks that one request can grant: the length of an answer's list.
const BLOCKS_MAX: u32 = LIST_WORDS as u32;

/// The messages of an operation: its requests and their answers.
pub(super) trait Operation {
    /// Return the request to send: the first one, or the next one after [`Operation::answered`] returned `None`.
    fn request(&self) -> WireRequest<'_>;

    /// Apply an answer to the session's mirror.
    fn answered(&mut self, _: &mut Sequences, _: &Session, reply: &Reply) -> Answered {
        reply.done()
    }

    /// Undo the local changes for a request that could not be sent.
    fn take_back(&self, _: &mut Sequences, _: &Session) {}

    /// Return the action and its object, for error messages.
    fn describe(&self) -> (&'static str, u64) {
        match self.request() {
            WireRequest::Reserve { seq, .. } => ("reserve for sequence", seq.into()),
            WireRequest::Fork { parent, .. } => ("fork sequence", parent.into()),
            WireRequest::Truncate { seq, .. } => ("truncate sequence", seq.into()),
            WireRequest::Publish { seq, .. } => ("publish blocks of sequence", seq.into()),
            WireRequest::AttachPrefix { seq, .. } => ("attach a prefix to sequence", seq.into()),
            WireRequest::Park { seq, .. } => ("park sequence", seq.into()),
            WireRequest::Resume { seq } => ("resume sequence", seq.into()),
            WireRequest::Acquire { seq, .. } => ("acquire pages of sequence", seq.into()),
            WireRequest::Tier0Resize { class, .. } => ("resize tier-0 class", class.into()),
            WireRequest::Guarantee { blocks } => ("guarantee blocks, number", blocks.into()),
            WireRequest::Lookup { .. } => ("look up a prefix on channel", 0),
            WireRequest::Lease { count, .. } => ("lease a prefix of blocks", count.into()),
            WireRequest::LoadBlocks { engine, .. } => (LOAD, engine.len() as u64),
            WireRequest::StoreBlocks { engine, .. } => (STORE, engine.len() as u64),
            WireRequest::Follow { from } => (FOLLOW, from),
            WireRequest::ListBlocks { cursor } => (LIST, cursor),
            WireRequest::LoadHashed { hashes, .. } => (LOAD_HASHED, hashes.len() as u64),
            _ => ("send a request on channel", 0),
        }
    }

    /// Return why the daemon refused the request, where it is known better than by the status.
    fn why(&self, _: &Session, status: Status) -> Option<String> {
        const PARKED: &str = "the sequence is parked, or another call on it is in flight";
        let request = self.request();
        let changes = matches!(request, WireRequest::Truncate { .. } | WireRequest::Acquire { .. });
        let grows = matches!(
            request,
            WireRequest::Reserve { .. } | WireRequest::Fork { .. } | WireRequest::AttachPrefix { .. }
        );
        match status {
            Status::State if changes || grows => Some(PARKED.into()),
            Status::Limit if grows => Some(FULL.into()),
            _ => None,
        }
    }

    /// Return the sequence that no other request may change meanwhile.
    fn changes(&self) -> Option<SeqId> {
        match self.request() {
            WireRequest::Reserve { seq, .. }
            | WireRequest::Fork { parent: seq, .. }
            | WireRequest::Truncate { seq, .. }
            | WireRequest::AttachPrefix { seq, .. }
            | WireRequest::Park { seq, .. }
            | WireRequest::Resume { seq }
            | WireRequest::Lease { seq, .. } => Some(seq),
            _ => None,
        }
    }
}

/// The outcome; `None`: the operation continues with another request. An error is the answer's status, or `Protocol`: the answer
/// contradicts its request.
type Answered = Result<Option<Outcome>, Status>;

/// Declares the operations that can be in flight.
macro_rules! work {
    ($($operation:ident),* $(,)?) => {
        /// An operation in flight.
        #[derive(Debug)]
        pub(super) enum Work {
            $($operation($operation)),*
        }

        impl Work {
            pub fn operation(&mut self) -> &mut dyn Operation {
                match self {
                    $(Work::$operation(operation) => operation),*
                }
            }
        }
    };
}
work! {
    Plain, Reserve, Fork, Truncate, Publish, AttachPrefix, Park, Resume, Acquire, Lookup,
    Lease, CopyBlocks, Resize, FeedPart,
}

impl Work {
    /// Create the operation of a request whose local changes, if any, have been made.
    pub fn plain(request: WireRequest<'static>) -> Work {
        Work::Plain(Plain(request))
    }
}

/// Result of beginning an operation.
pub(super) enum Started {
    /// Completed without the daemon.
    Done(Outcome),
    /// Its request is to be sent.
    Send(Work),
}

/// A call that can begin.
pub(super) trait Begin {
    /// Check the call and make its local changes. A mistake of the caller is refused here, before anything is sent.
    fn begin(self, sequences: &mut Sequences, session: &Arc<Session>) -> Result<Started, Refusal>;
}

impl Begin for Request<'_> {
    fn begin(self, sequences: &mut Sequences, session: &Arc<Session>) -> Result<Started, Refusal> {
        match self {
            Request::Nop => Ok(Started::Send(Work::plain(WireRequest::Nop {}))),
            Request::Reserve { seq, tokens } => Reserve::begin(sequences, session, seq, tokens),
            Request::Fork { seq } => Fork::begin(sequences, session, seq),
            Request::Truncate { seq, tokens } => Truncate::begin(sequences, session, seq, tokens),
            Request::Publish { seq, first, parent, hashes, level } => {
                Publish::begin(sequences, session, seq, (first, parent), hashes, level)
            }
            Request::AttachPrefix { seq, hashes, looked_up } => {
                AttachPrefix::begin(sequences, session, seq, hashes, looked_up)
            }
            Request::Park { seq, due } => Park::begin(sequences, seq, due),
            Request::Resume { seq } => Resume::begin(sequences, seq),
            Request::Advise { seq, first, count, advice } => {
                advise::begin(sequences, session, seq, (first, count), advice)
            }
            Request::Contract { seq, contract } => advise::contract(sequences, seq, contract),
            Request::Acquire { range } => Acquire::begin(sequences, session, range),
            Request::Lookup { hashes } => Lookup::begin(hashes),
            Request::Lease { hash, count, time } => Lease::begin(sequences, session, hash, count, time),
            Request::Load { lease, first, blocks } => CopyBlocks::load(sequences, session, lease, first, blocks),
            Request::Store { first, parent, hashes, blocks, level } => {
                CopyBlocks::store(session, (first, parent), hashes, blocks, level)
            }
            Request::Tier0Resize { class, frames } => Resize::begin(session, class, frames),
        }
    }
}

/// The daemon's answer to a request.
pub(super) struct Reply {
    pub status: Status,
    pub value: u64,
    pub list: Vec<u32>,
    /// Number of block ids.
    pub blocks_max: BlockId,
}

impl Reply {
    /// Return the status as a result. `fits`: the answer agrees with the request. Its list must consist of block ids.
    fn check(&self, fits: bool) -> Result<(), Status> {
        match self.status {
            Status::Ok if fits && self.list.iter().all(|block| *block < self.blocks_max) => Ok(()),
            Status::Ok => Err(Status::Protocol),
            status => Err(status),
        }
    }

    /// End an operation that has no result besides its status.
    fn done(&self) -> Answered {
        self.check(true).map(|()| Some(Outcome::Done))
    }

    /// Return whether the value is the length of the list.
    fn is_counted(&self) -> bool {
        self.value == self.list.len() as u64
    }

    /// Return the value as a level.
    fn level(&self) -> Option<Level> {
        Level::from_code(self.value.try_into().ok()?)
    }
}

/// A request that needs no more than its answer's status. If an update of a sequence fails, the daemon's state and the session's
/// mirror differ.
#[derive(Debug)]
pub(super) struct Plain(WireRequest<'static>);

impl Operation for Plain {
    fn request(&self) -> WireRequest<'_> {
        self.0
    }

    fn answered(&mut self, sequences: &mut Sequences, session: &Session, reply: &Reply) -> Answered {
        match self.0 {
            WireRequest::SeqDrop { seq } => sequences.forget(seq),
            WireRequest::Contract { seq, contract } if reply.status == Status::Ok => {
                session.shared.seqs().set_contract(seq, contract.word());
            }
            WireRequest::SeqCreate { seq } | WireRequest::Commit { seq, .. } if reply.status != Status::Ok => {
                sequences.rejected(seq, reply.status);
            }
            _ => {}
        }
        reply.done()
    }

    fn describe(&self) -> (&'static str, u64) {
        match self.0 {
            WireRequest::Contract { seq, .. } => ("set the reading contract of sequence", seq.into()),
            _ => ("send a request on channel", 0),
        }
    }

    fn changes(&self) -> Option<SeqId> {
        None
    }
}

/// Check the hashes of blocks that follow `parent`, at index `first` of their prefix.
pub(super) fn place(first: u32, parent: u128, hashes: &[Hash]) -> Result<(), Refusal> {
    let invalid = |why: String| Err(Refusal::because(Status::Invalid, why));
    match hashes.iter().position(|hash| *hash == 0) {
        Some(at) => invalid(format!("hashes[{at}] is 0, which is reserved for \"no block\"")),
        None if first == 0 && parent != 0 => invalid("block 0 of a prefix has no parent".into()),
        None if first != 0 && parent == 0 => invalid(format!("block {first} of a prefix needs its parent's hash")),
        None if u64::from(first) + hashes.len() as u64 > u64::from(u32::MAX) => {
            Err(Refusal::because(Status::Range, "a prefix has less than 2^32 blocks"))
        }
        None => Ok(()),
    }
}

/// Check a range of a sequence's blocks.
fn check_range(first: u32, count: u32, blocks: u32) -> Result<(), Refusal> {
    let why = || format!("{count} blocks from block {first} on; the sequence has {blocks}");
    let fits = first.checked_add(count).is_some_and(|end| end <= blocks);
    if fits { Ok(()) } else { Err(Refusal::because(Status::Range, why())) }
}

/// Why the daemon refuses hashes that [`place`] accepts.
const OTHER_PLACE: &str = "the cache has one of the blocks, or their parent, at another place of a prefix";

const FULL: &str = "the daemon has no room for another list of blocks: drop sequences or end leases";

/// Return the reason if a sequence would become too long.
fn too_long(session: &Session) -> String {
    let blocks = session.shared.seqs().seq_blocks_max();
    format!("a sequence may have {blocks} blocks of {} tokens", session.shared.geometry().bounds().page_tokens)
}

/// Return the hashes from `at` on that one request holds.
fn part(hashes: &[Hash], at: usize) -> &[Hash] {
    &hashes[at..hashes.len().min(at + HASHES_MAX)]
}

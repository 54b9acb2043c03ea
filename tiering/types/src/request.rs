//! Requests of engines.

use crate::{Advice, Contract, FrameId, Hash, LaneId, Level, SeqId};

/// Set in the `value` of a lease's result that is [`Status::Limit`](crate::Status::Limit) because the session's leases would pin too
/// much.
pub const LEASE_SHARE: u64 = 1 << 63;

/// A request's place in its ring entry (`kvtide_wire::entry::Submission`), besides its list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // described at the ring entry
pub struct Message {
    pub kind: u16,
    pub lane: u16,
    pub flags: u16,
    pub seq: u32,
    pub block: u32,
    pub first: u32,
    pub count: u32,
    pub value: u64,
    pub hash: Hash,
}

messages! {
    /// A request of an engine. The result, besides the status, is a number `value` and a list of words.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Request<'a>;
    /// Code of a request.
    pub enum Op: Message in place;
    /// No operation; a round trip.
    Nop = 0 {},
    /// Create an empty sequence with this index, which the engine picks among the free ones below `seqs_max`.
    SeqCreate = 1 { seq @ seq: SeqId },
    /// Drop the sequence and its references.
    SeqDrop = 2 { seq @ seq: SeqId },
    /// Grant new blocks to the sequence, each with one tier-0 frame for every plane of this shard and their page-table entries
    /// installed. Result: `value` = number, list = block ids.
    Reserve = 3 { seq @ seq: SeqId, count @ count: u32 },
    // 4 was a request of earlier versions.
    /// Set the committed length and seal every page that it covers completely.
    Commit = 5 { seq @ seq: SeqId, tokens @ value: u64 },
    /// Create a child that shares sealed blocks and has copies of unsealed ones. Result: `value` = index of the first copied
    /// block, list = the copied blocks' ids (the child's, in order).
    Fork = 6 { parent @ seq: SeqId, child @ block: SeqId },
    /// Cut the sequence. A cut inside a sealed block copies it. Result: list = the copy's id, if any.
    Truncate = 7 { seq @ seq: SeqId, tokens @ value: u64 },
    /// Make blocks findable by their hashes, from block `first` on; `parent` is the hash before the first one.
    Publish = 8 { seq @ seq: SeqId, first @ first: u32, parent @ hash: Hash, hashes @ hashes: &'a [Hash], level @ flags: Level },
    /// Attach the longest cached prefix to an empty sequence. `asked`: blocks to count as asked for; 0 in later requests for the same
    /// prefix, `None` if a lookup has asked for it and counted what was found. Result: `value` = number, list = block ids.
    AttachPrefix = 9 { seq @ seq: SeqId, hashes @ hashes: &'a [Hash], asked @ first: Option<u32> },
    /// Move the sequence out of tier 0, tail included. `due_us`: microseconds until its expected return, 0: unknown.
    Park = 10 { seq @ seq: SeqId, due_us @ value: u64 },
    /// Resume a parked sequence; completes when its tail is writable again. Result: list empty; jobs install the frames.
    Resume = 11 { seq @ seq: SeqId },
    /// Say how a range of blocks will be used.
    Advise = 12 { seq @ seq: SeqId, first @ first: u32, count @ count: u32, advice @ flags_value: Advice },
    /// Pin the pages of a range of blocks in some planes; completes when all are resident.
    Acquire = 13 { seq @ seq: SeqId, plane @ lane: u16, planes @ flags: u16, first @ first: u32, count @ count: u32 },
    /// Unpin the same range as an acquire that completed.
    Release = 14 { seq @ seq: SeqId, plane @ lane: u16, planes @ flags: u16, first @ first: u32, count @ count: u32 },
    /// A step began with pages that are not resident.
    Step = 15 { lane @ lane: LaneId, step @ value: u64, seqs @ counted: &'a [SeqId] },
    /// That step ended.
    StepEnd = 16 { lane @ lane: LaneId, step @ value: u64 },
    /// A lane waits for a page. Completes when the page is resident or lost. `use_pos`: see `kvtide_wire::entry::Job::use_pos`. `whole`:
    /// the lane gives up no page that it uses there before it has all of them, so a job that waits for such a use is canceled.
    Fault = 17 { lane @ lane: LaneId, use_pos @ value: u64, seq @ seq: SeqId, index @ first: u32, plane @ flags: u16, whole @ count: bool },
    /// Cancel a request of this channel, which then completes with [`Status::Canceled`](crate::Status::Canceled) unless it has
    /// already ended.
    Cancel = 18 { tag @ value: u16 },
    /// After a reattach: declare a block and the tier-0 frames, one for each plane (or none), in which the agent still holds
    /// its pages. `tokens`: committed. Result: list = the block's new id.
    Declare = 19 { seq @ seq: SeqId, index @ first: u32, tokens @ value: u64, frames @ words: &'a [FrameId] },
    /// Set how many of the class's tier-0 frames the session uses for pages from now on, out of those that it attached with. To
    /// shrink: completes when no lane's table shows a frame from `frames` on, so that the memory behind them may be released;
    /// `Busy` if pages that must stay (unsealed, acquired) need more, `NoSpace` if the tiers below have no room for the pages
    /// that must leave, `State` while another resize of the class is in progress. A failed resize changes nothing. To grow: the
    /// memory must exist before the request. Result: `value` = the frames.
    Tier0Resize = 20 { class @ first: u8, frames @ count: u32 },
    /// Set how the sequence is read from now on.
    Contract = 21 { seq @ seq: SeqId, contract @ flags_value: Contract },
    /// Look hashes of one chain up, ascending, each an ancestor of the next one, not necessarily its parent. Result: `value`,
    /// lower half = how many of them, from the first on, are cached in all shards together with all their ancestors; upper half
    /// = approximately how many of those are in host memory, counting only the session's shard. A lookup of a long prefix takes
    /// several requests. `asked`: blocks to count as asked for, in the first of them; 0 in the others. `range`: blocks that these
    /// hashes divide into equal parts, of which each is the last; counted as found are those up to the last hash that is cached.
    Lookup = 22 { hashes @ hashes: &'a [Hash], asked @ first: u32, range @ block: u32 },
    /// Create a sequence that pins a cached prefix: `hash` = its last block, `count` = its blocks. It ends with
    /// [`Request::SeqDrop`], or by itself after `lease_us`. `NotFound`: the prefix is not cached (any more). `Limit` with a
    /// `value`: the maximum duration of a lease in microseconds, or with [`LEASE_SHARE`] the maximum bytes of cache that the
    /// session's leases may hold together. Result: `value` = estimated microseconds to load the prefix, from measurements so
    /// far; list = how many of its blocks are in host memory, on NVMe only, and in other sessions' tier 0 only.
    Lease = 23 { seq @ seq: SeqId, hash @ hash: Hash, count @ count: u32, lease_us @ value: u64 },
    /// Copy the sequence's blocks, from `first` on, into blocks of the engine's own memory. At completion, successful or not,
    /// no job of the request is in progress. Result: `value` = blocks that arrived, list = indices within the request of those
    /// that did not.
    LoadBlocks = 24 { seq @ seq: SeqId, first @ first: u32, engine @ counted: &'a [u32] },
    /// Cache the bytes of blocks of the engine's own memory under `hashes`; `first` = index in its prefix of the first block,
    /// `parent` = the hash before it (0: none). A block can be found only when all of it has arrived. At completion, successful
    /// or not, no job of the request is in progress. Result: `value` = blocks that can be found, or, if a level above
    /// [`Level::Published`] was requested and all can be found, the level reached; list = indices of the blocks that cannot be
    /// found.
    StoreBlocks = 25 { first @ first: u32, parent @ hash: Hash, hashes @ hashes: &'a [Hash], engine @ counted: &'a [u32], level @ flags: Level },
    // 26 was a request of earlier versions.
    /// Guarantee that the session can have this many blocks at the same time, not counting those that other sessions refer to as
    /// well. It replaces an earlier guarantee of the session. Up to that number no request of the session for blocks is refused
    /// for want of block ids or memory below tier 0, unless the disks fail. `NoSpace`: `value` = how many blocks could be
    /// guaranteed. Result: `value` = the blocks.
    Guarantee = 27 { blocks @ count: u32 },
    /// For a relay: wait for events of the space's feed ([`FeedEvent`](crate::FeedEvent)) from number `from` on. The first one of
    /// a session is answered by [`FeedEvent::Gap`](crate::FeedEvent::Gap), whatever its number. `TimedOut`: nothing has happened.
    /// Result: `value` = number of the event after the last one returned; list = events.
    Follow = 28 { from @ value: u64 },
    /// For a relay: list a part of the cache, as the events that would have led to it. A block that comes or goes meanwhile may
    /// be missing or not; the feed tells. `cursor`: 0, or the value of the result before. Result: `value` = the next cursor, 0:
    /// this was the last part; list = events.
    ListBlocks = 29 { cursor @ value: u64 },
    /// For a relay: copy cached blocks into blocks of its own memory, without a lease and without counting as a use. A block of
    /// which any page is missing fails, also one that no attention would read. Result as for [`Request::LoadBlocks`].
    LoadHashed = 30 { hashes @ hashes: &'a [Hash], engine @ counted: &'a [u32] },
}

mod place {
    use super::Message;
    use crate::{Advice, Contract, Hash, List, Place, Status};

    places! { Message:
        lane: u16,
        flags: u16,
        seq: u32,
        block: u32,
        first: u32,
        count: u32,
        value: u64,
        hash: Hash,
    }

    /// Declares a place in the list. Unless the words are not counted, `count` is their number.
    macro_rules! list {
        ($($place:ident: $part:ident of $type:ty = $list:expr;)*) => {$(
            #[derive(Debug)]
            #[allow(non_camel_case_types)]
            pub struct $place;
            impl $place {
                pub const LIST: u8 = $list;
            }
            impl<'a> Place<'a, &'a [$type], Message> for $place {
                fn put(message: &mut Message, list: &mut List<'a>, field: &'a [$type]) {
                    list.$part = field;
                    if $place::LIST != List::WORDS {
                        message.count = field.len() as u32;
                    }
                }
                fn get(message: &Message, list: List<'a>) -> Result<&'a [$type], Status> {
                    let fits = $place::LIST == List::WORDS || list.$part.len() == message.count as usize;
                    if fits { Ok(list.$part) } else { Err(Status::Invalid) }
                }
            }
        )*};
    }
    list! {
        hashes: hashes of Hash = List::HASHES;
        counted: words of u32 = List::COUNTED;
        words: words of u32 = List::WORDS;
    }

    /// A code in `flags` with an argument in `value`.
    #[derive(Debug)]
    #[allow(non_camel_case_types)]
    pub struct flags_value;
    impl flags_value {
        pub const LIST: u8 = 0;
    }
    macro_rules! with_argument {
        ($($type:ty),*) => {$(
            impl Place<'_, $type, Message> for flags_value {
                fn put(message: &mut Message, _: &mut List<'_>, field: $type) {
                    let (code, argument) = field.code();
                    (message.flags, message.value) = (code, argument.into());
                }
                fn get(message: &Message, _: List<'_>) -> Result<$type, Status> {
                    <$type>::from_code(message.flags, message.value)
                }
            }
        )*};
    }
    with_argument!(Advice, Contract);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{List, Status};

    fn decode(message: Message, words: &[u32]) -> Result<Request<'_>, Status> {
        Request::decode(&message, List { hashes: &[], words })
    }

    #[test]
    fn what_is_encoded_comes_back() {
        let (hashes, words) = (&[7, 1 << 100][..], &[3, 4][..]);
        let requests = [
            Request::Reserve { seq: 6, count: 5 },
            Request::AttachPrefix { seq: 1, hashes, asked: None },
            Request::AttachPrefix { seq: 1, hashes, asked: Some(6) },
            Request::Publish { seq: 1, first: 4, parent: 1 << 90, hashes, level: Level::Stored },
            Request::Advise { seq: 1, first: 2, count: 3, advice: Advice::Priority(255) },
            Request::Step { lane: 3, step: 1 << 40, seqs: words },
            Request::Fault { lane: 3, use_pos: 1 << 40, seq: 1, index: 2, plane: 5, whole: true },
            Request::Declare { seq: 1, index: 2, tokens: 3, frames: words },
            Request::Contract { seq: 1, contract: Contract::Approx { permille: 1000 } },
            Request::StoreBlocks { first: 1, parent: 0, hashes, engine: words, level: Level::Durable },
        ];
        for request in requests {
            let (message, list) = request.encode();
            assert_eq!(message.kind, request.code().code());
            assert_eq!(Request::decode(&message, list), Ok(request));
        }
    }

    #[test]
    fn codes_of_deleted_requests_stay_free() {
        for kind in [4, 26] {
            assert_eq!(decode(Message { kind, ..Message::default() }, &[]), Err(Status::Invalid));
        }
    }

    #[test]
    fn unknown_codes_and_large_numbers_are_errors() {
        let of = |op: Op| Message { kind: op.code(), ..Message::default() };
        let error = |message| decode(message, &[]).err();
        assert_eq!(error(Message { kind: Op::LoadHashed.code() + 1, ..Message::default() }), Some(Status::Invalid));
        assert_eq!(error(Message { flags: 3, ..of(Op::Publish) }), Some(Status::Invalid));
        assert_eq!(error(Message { flags: Advice::CODES, ..of(Op::Advise) }), Some(Status::Invalid));
        assert_eq!(error(Message { flags: 5, value: u64::from(Advice::UNKNOWN), ..of(Op::Advise) }), None);
        assert_eq!(error(Message { flags: 5, value: 1 << 32, ..of(Op::Advise) }), Some(Status::Range));
        assert_eq!(error(Message { flags: 4, value: 256, ..of(Op::Advise) }), Some(Status::Range));
        assert_eq!(error(Message { value: 1 << 16, ..of(Op::Cancel) }), Some(Status::Range));
        assert_eq!(error(Message { flags: Contract::CODES, ..of(Op::Contract) }), Some(Status::Invalid));
        assert_eq!(error(Message { flags: 1, value: 1 << 16, ..of(Op::Contract) }), Some(Status::Range));
        assert_eq!(error(Message { first: 256, ..of(Op::Tier0Resize) }), Some(Status::Range));
    }

    #[test]
    fn a_list_has_as_many_words_as_the_message_says() {
        let step = Message { kind: Op::Step.code(), count: 2, ..Message::default() };
        assert_eq!(decode(step, &[1]), Err(Status::Invalid));
        assert_eq!(decode(step, &[1, 2]), Ok(Request::Step { lane: 0, step: 0, seqs: &[1, 2] }));
        assert_eq!(Op::StoreBlocks.list(), List::HASHES | List::COUNTED);
        assert_eq!((Op::Declare.list(), Op::Nop.list()), (List::WORDS, 0));
    }
}

//! What travels in the rings: one 64-byte cache line an entry, little endian, no pointers.
//!
//! Everything in here that an engine wrote is a claim: the daemon copies an entry once, then validates the copy.

use crate::status::Status;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a ring entry.
pub const ENTRY_BYTES: usize = 64;
/// `u32` words of the list area that belongs to one request tag (see [`Submission::list_len`]).
pub const LIST_WORDS: usize = 512;
/// No sequence, no block, no frame, no lane: the all-ones value of its width.
pub const NONE_U32: u32 = u32::MAX;
/// No lane.
pub const NONE_U16: u16 = u16::MAX;

/// What a [`Submission`] asks for. The comment names the fields that it uses besides `tag` and `timeout_us`.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Round trip without effect.
    Nop = 0,
    /// `seq`: creates an empty sequence in that slot (the engine picks a free slot below `seqs_max`).
    SeqCreate = 1,
    /// `seq`: drops the sequence and its references.
    SeqDrop = 2,
    /// `seq` (or none: the session's own reserve), `count` blocks: grants new blocks, each with one tier-0 frame for every
    /// plane of this shard, their page-table entries published. Completion: `value` = number, list = block ids.
    Reserve = 3,
    /// `seq`, `block`: moves a block from the session's reserve to the end of the sequence.
    Bind = 4,
    /// `seq`, `value` = tokens: the committed length; seals every page that it covers wholly.
    Commit = 5,
    /// `seq` = parent, `block` = child's slot: shares sealed blocks, copies unsealed ones. Completion: `value` = index of the
    /// first copied block, list = the copied blocks' ids (the child's, in order).
    Fork = 6,
    /// `seq`, `value` = tokens: rolls back. A cut inside a sealed block copies it. Completion: list = the copy's id, if any.
    Truncate = 7,
    /// `seq`, `first` = block index, `count`, `flags` = [`Level`], list = `count` hashes of 4 words, `hash` = parent of the first.
    Publish = 8,
    /// `seq` (empty), `count`, list = hashes: attaches the longest cached prefix. Completion: `value` = number, list = block ids.
    Map = 9,
    /// `seq`, `value` = microseconds until it is expected back (0: unknown): leaves tier 0, tail included.
    Park = 10,
    /// `seq`: comes back; completes when its tail is writable again. Completion: list empty; frames move by jobs.
    Resume = 11,
    /// `seq`, `first`, `count` (block range), `flags` = [`Advice`], `value` = what the advice takes, if it takes anything.
    Advise = 12,
    /// `seq`, `first`, `count` (block range), `lane` = first plane, `flags` = planes: pins; completes when all are resident.
    Acquire = 13,
    /// The same range as an [`Op::Acquire`] that completed: unpins.
    Release = 14,
    /// `lane`, `value` = step number, `count` sequences in the list: a step began in which not everything is resident.
    Step = 15,
    /// `lane`, `value` = step number: that step ended.
    StepEnd = 16,
    /// `lane`, `value` = use position (see [`Job::use_pos`]), `seq`, `first` = block index, `flags` = plane: a lane waits for
    /// this page. Completes when it is resident or lost.
    Fault = 17,
    /// `value` = tag of a request of this channel: cancels it; it completes with [`Status::Canceled`] unless it already ended.
    Cancel = 18,
    /// After a reattach: `seq`, `first` = block index, `value` = committed tokens, list = one tier-0 frame a plane
    /// (or none): the block and the frames in which the agent still holds its pages. Completion: list = the block's new id.
    Declare = 19,
    /// `first` = size class, `count` = frames: how many of the class's tier-0 frames the session gives pages from now on, of
    /// those that it attached with. Fewer: completes when no lane's table shows a frame from `count` on any more, so that the
    /// memory behind them may go; [`Status::Busy`] if pages that must stay (unsealed, acquired) need more, [`Status::NoSpace`]
    /// if those that would have to leave find no place below, [`Status::State`] while another one of the class is under way.
    /// One that fails changes nothing. More: the memory must be there when it is asked. Completion: `value` = the frames.
    Tier0Resize = 20,
    /// `seq`, `flags` = [`Contract`], `value` = what the contract takes: how the sequence is read from now on.
    Contract = 21,
    /// `count`, list = hashes of one chain, ascending, each an ancestor of the next one, not necessarily its parent. Completion: `value`,
    /// lower half = how many of them, from the first on, are cached whole over all shards, and so is all that stands before them;
    /// upper half = about how many of those are in host, as far as they belong to the session's shard.
    Lookup = 22,
    /// `seq` (not created), `hash` = last block of a cached prefix, `count` = its blocks, `value` = microseconds: a sequence that holds
    /// the prefix. It ends with [`Op::SeqDrop`], or by itself after that time. [`Status::NotFound`]: it is not cached (any more).
    /// [`Status::Limit`] with a `value`: how many microseconds a lease may last, or with [`LEASE_SHARE`] how many bytes of cache the
    /// session's leases may hold alone.
    /// Completion: `value` = microseconds that loading it takes, as far as that was measured; list = how many of its blocks are in host,
    /// on NVMe alone, and in other sessions' tier 0 alone.
    Lease = 23,
    /// `seq`, `first` = block index, `count`, list = `count` blocks of the engine's own memory: they get the bytes of the sequence's blocks.
    /// However it ends, then no job of it is under way. Completion: `value` = blocks that arrived, list = indices into the request's of those
    /// that did not.
    LoadBlocks = 24,
    /// `first` = index in its prefix of the first block, `hash` = what stands before it (0: nothing), `count`, `flags` = [`Level`], list =
    /// `count` hashes of 4 words, then `count` blocks of the engine's own memory: their bytes become cached under the hashes. None is
    /// found before all of it has arrived. However it ends, then no job of it is under way. Completion: `value` = blocks that can be
    /// found, or, if a level above [`Level::Published`] was asked for and all can, the level reached; list = indices of those that cannot.
    StoreBlocks = 25,
    /// `seq`, `first` = block index, `count`: brings the blocks up into host as far as there is room. Completion as [`Op::LoadBlocks`].
    FetchBlocks = 26,
}

/// Set in the `value` of an [`Op::Lease`] that failed with [`Status::Limit`] since the session's leases would hold too much.
pub const LEASE_SHARE: u64 = 1 << 63;

impl Op {
    /// Every operation, in code order.
    pub const ALL: [Op; 27] = [
        Op::Nop,
        Op::SeqCreate,
        Op::SeqDrop,
        Op::Reserve,
        Op::Bind,
        Op::Commit,
        Op::Fork,
        Op::Truncate,
        Op::Publish,
        Op::Map,
        Op::Park,
        Op::Resume,
        Op::Advise,
        Op::Acquire,
        Op::Release,
        Op::Step,
        Op::StepEnd,
        Op::Fault,
        Op::Cancel,
        Op::Declare,
        Op::Tier0Resize,
        Op::Contract,
        Op::Lookup,
        Op::Lease,
        Op::LoadBlocks,
        Op::StoreBlocks,
        Op::FetchBlocks,
    ];

    /// Decodes an operation code from the other process.
    #[must_use]
    pub fn from_code(code: u16) -> Option<Op> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// How well a published block must be kept, and how well it is.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Findable while the daemon lives.
    Published = 0,
    /// Data and index record written; survives `kill -9`.
    Stored = 1,
    /// After a device flush; survives power loss.
    Durable = 2,
}

/// What an engine knows about its future use of a range.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// Will be read soon: bring it into tier 0 if there is room without harm.
    WillNeed = 0,
    /// Will not be read soon: demote it first.
    DontNeed = 1,
    /// Will be read once, front to back.
    Sequential = 2,
    /// Rarely read: keep it out of tier 0 and write it down early.
    Cold = 3,
    /// `value` = priority 0 (evict first) to 255.
    Priority = 4,
    /// `value` = tokens that the sequence will still commit before it is dropped, counted from now, [`NONE_U32`]: unknown. The
    /// range says nothing.
    Remaining = 5,
}

/// How much of a sequence attention must read. Every sequence begins as [`Contract::Exact`].
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contract {
    /// Every page; one that is late is waited for.
    Exact = 0,
    /// The best pages: `value` thousandths of a plane's pages, 1 to 1000.
    Approx = 1,
    /// Every page but those whose digests prove that together they hold at most `value` millionths of a query head's mass, 0 to
    /// 1,000,000.
    Bounded = 2,
}

/// A request, engine to daemon. Field use: [`Op`].
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Submission {
    /// [`Op`] code.
    pub op: u16,
    /// Slot of this request, below the channel's depth; its completion and its list area are those of the tag.
    pub tag: u16,
    /// Lane, or first plane.
    pub lane: u16,
    /// Flags of the operation.
    pub flags: u16,
    /// Sequence slot.
    pub seq: u32,
    /// Block id, or child's sequence slot.
    pub block: u32,
    /// First block index, or size class.
    pub first: u32,
    /// Number of blocks, hashes, sequences or frames.
    pub count: u32,
    /// Words used in the tag's list area, engine to daemon, at most [`LIST_WORDS`].
    pub list_len: u32,
    /// Zero.
    pub reserved: u32,
    /// Tokens, step, position or microseconds.
    pub value: u64,
    /// Deadline from now in microseconds; 0 = the daemon's default.
    pub timeout_us: u64,
    /// Parent hash, low word first.
    pub hash: [u64; 2],
}

/// An answer, daemon to engine: exactly one for each submission.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Completion {
    /// [`Op`] code of the request.
    pub op: u16,
    /// Tag of the request.
    pub tag: u16,
    /// [`Status`] code.
    pub status: i32,
    /// Words in the tag's answer list, daemon to engine.
    pub list_len: u32,
    /// Zero.
    pub reserved: u32,
    /// Result, see [`Op`].
    pub value: u64,
    /// Zero.
    pub pad: [u64; 5],
}

/// What the agent shall do to a frame of its tier 0.
///
/// A frame that shows a page (the victim) is unpublished on every lane first, in lane order; only then is it overwritten.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// Give page `block`/`plane` the frame, contents undefined, and publish it: a new page.
    Map = 0,
    /// Copy the page from host frame `slab`/`slot` into the frame, then publish it. Into a window frame nothing is copied: from
    /// then on it shows the host frame, which keeps the page until a job that takes the frame from it has ended. Of the other kinds
    /// only `Evict` (and `Cancel`) may name a window frame.
    Load = 1,
    /// Copy the page's frame out to host frame `slab`/`slot`; the entry stays.
    Store = 2,
    /// Copy tier-0 frame `src_frame` (another page of this session, stays) into the frame, then publish it.
    Copy = 3,
    /// Copy host frame `slab`/`slot`, which belongs to page `src_block`, into the frame and publish it as `block`: copy on write.
    LoadCopy = 4,
    /// Unpublish all pages of `block` on all lanes; its frames are free afterwards.
    Drop = 5,
    /// Unpublish the one page in `frame`; the frame is free afterwards.
    Evict = 6,
    /// Stop job `src_block` (a job id) if its copy has not begun; that job then completes with [`Status::Canceled`].
    Cancel = 7,
    /// Copy tier-0 frame `src_frame`, which shows the page, into the frame and publish it there, without a moment in which it
    /// shows nowhere: while no lane is in a step, and a lane that begins waits until it has ended. So an unsealed page, which
    /// the engine writes, gets another frame; the one before is free afterwards. `Io`: it still shows where it did.
    Move = 8,
    /// Copy block `src_frame` of the engine's own memory, as far as it belongs to the plane, out to host frame `slab`/`slot`.
    Gather = 9,
    /// Copy the page from host frame `slab`/`slot` into block `src_frame` of the engine's own memory.
    Scatter = 10,
}

impl JobKind {
    /// Every kind, in code order.
    pub const ALL: [JobKind; 11] = [
        JobKind::Map,
        JobKind::Load,
        JobKind::Store,
        JobKind::Copy,
        JobKind::LoadCopy,
        JobKind::Drop,
        JobKind::Evict,
        JobKind::Cancel,
        JobKind::Move,
        JobKind::Gather,
        JobKind::Scatter,
    ];

    /// Decodes a kind from the other process.
    #[must_use]
    pub fn from_code(code: u16) -> Option<JobKind> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// In [`Job::flags`] of a copy between host and tier 0, or an engine's own memory: the page is in the canary's sample. A
/// [`JobKind::Store`] or [`JobKind::Gather`] reports the digest of the page as it stands in tier 0, or there ([`JobDone::digest`]); a
/// [`JobKind::Load`], [`JobKind::LoadCopy`] or [`JobKind::Scatter`] compares that of
/// the bytes that landed in tier 0 with [`Job::digest`] before it publishes them, and ends with [`Status::Corrupt`] if they differ.
/// A digest is the CRC-32C (Castagnoli) of the page's bytes.
pub const CANARY: u32 = 1;

/// A migration that the daemon planned and the agent carries out.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Job {
    /// [`JobKind`] code.
    pub kind: u16,
    /// Plane of the page.
    pub plane: u16,
    /// Plane of the victim.
    pub victim_plane: u16,
    /// Lane whose use of the victim must be over first ([`Job::use_pos`]); [`NONE_U16`]: unpublish at each lane's next boundary.
    pub use_lane: u16,
    /// Id that its completion carries; unique among the session's jobs in flight.
    pub id: u32,
    /// Block of the page.
    pub block: u32,
    /// Tier-0 frame that is read or written.
    pub frame: u32,
    /// Source frame of a [`JobKind::Copy`] or [`JobKind::Move`]; the engine's block of a [`JobKind::Gather`] or [`JobKind::Scatter`].
    pub src_frame: u32,
    /// Source block of a [`JobKind::LoadCopy`], job id of a [`JobKind::Cancel`].
    pub src_block: u32,
    /// Block that the frame shows now, [`NONE_U32`] if none.
    pub victim_block: u32,
    /// Host slab.
    pub slab: u32,
    /// Host frame within the slab; byte offset = slot × the class's stride.
    pub slot: u32,
    /// Position of the victim's last use on `use_lane`: step × planes + plane. The lane is past it when its own position is
    /// greater, or equal and a boundary of that plane has followed the one at which the victim was readable.
    pub use_pos: u64,
    /// 0 or [`CANARY`].
    pub flags: u32,
    /// Of a [`JobKind::Load`] or [`JobKind::LoadCopy`] with [`CANARY`]: what the page's bytes must hash to. Else zero.
    pub digest: u32,
    /// Zero.
    pub pad: u64,
}

/// The end of a [`Job`], agent to daemon: exactly one for each.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct JobDone {
    /// [`Job::id`].
    pub id: u32,
    /// [`Status`] code: `Ok`, `Busy` (victim acquired meanwhile; nothing was done), `Canceled`, `Io`, `Invalid`, `Corrupt` (the
    /// bytes that were loaded are not those that were stored; nothing shows them).
    pub status: i32,
    /// Bytes copied; the page's bytes for a copy that succeeded, anything else is a failure.
    pub bytes: u64,
    /// Nanoseconds from taking the job to its end.
    pub elapsed_ns: u64,
    /// [`CANARY`] if `digest` was taken: of a job that asked for it and ended `Ok` or `Corrupt`. Else 0.
    pub flags: u32,
    /// The page's digest as it stands in tier 0. Else zero.
    pub digest: u32,
    /// Zero.
    pub pad: [u64; 4],
}

const _: () = {
    assert!(size_of::<Submission>() == ENTRY_BYTES && align_of::<Submission>() == ENTRY_BYTES);
    assert!(size_of::<Completion>() == ENTRY_BYTES && align_of::<Completion>() == ENTRY_BYTES);
    assert!(size_of::<Job>() == ENTRY_BYTES && align_of::<Job>() == ENTRY_BYTES);
    assert!(size_of::<JobDone>() == ENTRY_BYTES && align_of::<JobDone>() == ENTRY_BYTES);
};

impl Completion {
    /// An answer without results.
    #[must_use]
    pub fn new(op: u16, tag: u16, status: Status) -> Completion {
        Completion { op, tag, status: status.code(), ..Completion::default() }
    }
}

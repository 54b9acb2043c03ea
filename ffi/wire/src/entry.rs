//! Ring entries: one 64-byte cache line each, little endian, no pointers.
//!
//! All fields that an engine wrote are untrusted: the daemon copies an entry once, then validates the copy.

use crate::status::Status;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a ring entry.
pub const ENTRY_BYTES: usize = 64;
/// `u32` words in the list area of a request tag (see [`Submission::list_len`]).
pub const LIST_WORDS: usize = 512;
/// All-ones value: no sequence, block, frame or lane.
pub const NONE_U32: u32 = u32::MAX;
/// No lane.
pub const NONE_U16: u16 = u16::MAX;

/// Operation of a [`Submission`]. Each comment names the fields it uses besides `tag` and `timeout_us`.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// No operation; a round trip.
    Nop = 0,
    /// `seq`: creates an empty sequence with this slot (the engine picks a free slot below `seqs_max`).
    SeqCreate = 1,
    /// `seq`: drops the sequence and its references.
    SeqDrop = 2,
    /// `seq` (or none: the session's own reserve), `count` blocks: grants new blocks, each with one tier-0 frame for every plane of
    /// this shard and their page-table entries installed. Completion: `value` = number, list = block ids.
    Reserve = 3,
    /// `seq`, `block`: moves a block from the session's reserve to the end of the sequence.
    Bind = 4,
    /// `seq`, `value` = tokens: sets the committed length and seals every page that it covers completely.
    Commit = 5,
    /// `seq` = parent, `block` = child's slot: shares sealed blocks, copies unsealed ones. Completion: `value` = index of the
    /// first copied block, list = the copied blocks' ids (the child's, in order).
    Fork = 6,
    /// `seq`, `value` = tokens: truncates the sequence. A cut inside a sealed block copies it. Completion: list = the copy's id, if
    /// any.
    Truncate = 7,
    /// `seq`, `first` = block index, `count`, `flags` = [`Level`], list = `count` hashes of 4 words, `hash` = parent of the first.
    Publish = 8,
    /// `seq` (empty), `count`, list = hashes: attaches the longest cached prefix. Completion: `value` = number, list = block ids.
    Map = 9,
    /// `seq`, `value` = microseconds until its expected return (0: unknown): moves it out of tier 0, tail included.
    Park = 10,
    /// `seq`: resumes a parked sequence; completes when its tail is writable again. Completion: list empty; jobs install the
    /// frames.
    Resume = 11,
    /// `seq`, `first`, `count` (block range), `flags` = [`Advice`], `value` = the argument of the advice, if any.
    Advise = 12,
    /// `seq`, `first`, `count` (block range), `lane` = first plane, `flags` = planes: pins; completes when all are resident.
    Acquire = 13,
    /// The same range as an [`Op::Acquire`] that completed: unpins.
    Release = 14,
    /// `lane`, `value` = step number, `count` sequences in the list: a step began with pages that are not resident.
    Step = 15,
    /// `lane`, `value` = step number: that step ended.
    StepEnd = 16,
    /// `lane`, `value` = use position (see [`Job::use_pos`]), `seq`, `first` = block index, `flags` = plane: a lane waits for this
    /// page. Completes when the page is resident or lost.
    Fault = 17,
    /// `value` = tag of a request of this channel: cancels that request, which then completes with [`Status::Canceled`] unless it
    /// has already ended.
    Cancel = 18,
    /// After a reattach: `seq`, `first` = block index, `value` = committed tokens, list = one tier-0 frame for each plane (or
    /// none): declares the block and the frames in which the agent still holds its pages. Completion: list = the block's new id.
    Declare = 19,
    /// `first` = size class, `count` = frames: sets how many of the class's tier-0 frames the session uses for pages from now on,
    /// out of those that it attached with. To shrink: completes when no lane's table shows a frame from `count` on, so that the
    /// memory behind them may be released; [`Status::Busy`] if pages that must stay (unsealed, acquired) need more,
    /// [`Status::NoSpace`] if the tiers below have no room for the pages that must leave, [`Status::State`] while another resize of
    /// the class is in progress. A failed resize changes nothing. To grow: the memory must exist before the request. Completion:
    /// `value` = the frames.
    Tier0Resize = 20,
    /// `seq`, `flags` = [`Contract`], `value` = the argument of the contract: sets how the sequence is read from now on.
    Contract = 21,
    /// `count`, list = hashes of one chain, ascending, each an ancestor of the next one, not necessarily its parent. Completion:
    /// `value`, lower half = how many of them, from the first on, are cached in all shards together with all their ancestors; upper
    /// half = approximately how many of those are in host memory, counting only the session's shard.
    Lookup = 22,
    /// `seq` (not created), `hash` = last block of a cached prefix, `count` = its blocks, `value` = microseconds: creates a
    /// sequence that pins the prefix. It ends with [`Op::SeqDrop`], or by itself after that time. [`Status::NotFound`]: the prefix
    /// is not cached (any more). [`Status::Limit`] with a `value`: the maximum duration of a lease in microseconds, or with
    /// [`LEASE_SHARE`] the maximum bytes of cache that the session's leases may hold together. Completion: `value` = estimated
    /// microseconds to load the prefix, from measurements so far; list = how many of its blocks are in host memory, on NVMe only,
    /// and in other sessions' tier 0 only.
    Lease = 23,
    /// `seq`, `first` = block index, `count`, list = `count` blocks of the engine's own memory: copies the sequence's blocks into
    /// them. At completion, successful or not, no job of the request is in progress. Completion: `value` = blocks that arrived,
    /// list = indices within the request of those that did not.
    LoadBlocks = 24,
    /// `first` = index in its prefix of the first block, `hash` = its parent (0: none), `count`, `flags` = [`Level`], list =
    /// `count` hashes of 4 words, then `count` blocks of the engine's own memory: caches their bytes under the hashes. A block can
    /// be found only when all of it has arrived. At completion, successful or not, no job of the request is in progress.
    /// Completion: `value` = blocks that can be found, or, if a level above [`Level::Published`] was requested and all can be
    /// found, the level reached; list = indices of the blocks that cannot be found.
    StoreBlocks = 25,
    /// `seq`, `first` = block index, `count`: reads the blocks into host memory as far as there is room. Completion as
    /// [`Op::LoadBlocks`].
    FetchBlocks = 26,
}

/// Set in the `value` of an [`Op::Lease`] that failed with [`Status::Limit`] because the session's leases would pin too much.
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

    /// Decode an operation code from the other process.
    #[must_use]
    pub fn from_code(code: u16) -> Option<Op> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Durability of a published block, as requested and as reached.
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

/// Hint from an engine about its future use of a range.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// Will be read soon: load it into tier 0 if there is room without harm.
    WillNeed = 0,
    /// Will not be read soon: demote it first.
    DontNeed = 1,
    /// Will be read once, front to back.
    Sequential = 2,
    /// Rarely read: keep it out of tier 0 and write it back early.
    Cold = 3,
    /// `value` = priority 0 (evict first) to 255.
    Priority = 4,
    /// `value` = tokens that the sequence will still commit before it is dropped, counted from now; [`NONE_U32`]: unknown. The
    /// range is ignored.
    Remaining = 5,
}

/// How much of a sequence attention must read. Every sequence starts as [`Contract::Exact`].
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contract {
    /// Every page; a late page is awaited.
    Exact = 0,
    /// The best pages: `value` thousandths of a plane's pages, 1 to 1000.
    Approx = 1,
    /// Every page, except pages that digests prove to hold together at most `value` millionths of each query head's attention, 0
    /// to 1,000,000.
    Bounded = 2,
}

/// A request, engine to daemon. [`Op`] describes the use of the fields.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Submission {
    /// [`Op`] code.
    pub op: u16,
    /// Tag of this request, below the channel's depth. The completion and the list areas of the request use the same tag.
    pub tag: u16,
    /// Lane, or first plane.
    pub lane: u16,
    /// Argument of the operation.
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

/// A response, daemon to engine: exactly one for each submission.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Completion {
    /// [`Op`] code of the request.
    pub op: u16,
    /// Tag of the request.
    pub tag: u16,
    /// [`Status`] code.
    pub status: i32,
    /// Words in the tag's answer list, written by the daemon.
    pub list_len: u32,
    /// Zero.
    pub reserved: u32,
    /// Result, see [`Op`].
    pub value: u64,
    /// Zero.
    pub pad: [u64; 5],
}

/// Action of the agent on a frame of its tier 0.
///
/// If the frame shows a page (the victim), that page is first invalidated on every lane, in lane order. Only then is the frame
/// overwritten.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// Assign the frame to page `block`/`plane`, contents undefined, and install it: a new page.
    Map = 0,
    /// Copy the page from host frame `slab`/`slot` into the frame, then install it. For a mapped frame nothing is copied: from then
    /// on it shows the host frame, which keeps the page until a job that reassigns the mapped frame has ended. Of the other kinds
    /// only `Evict` (and `Cancel`) may name a mapped frame.
    Load = 1,
    /// Copy the page's frame out to host frame `slab`/`slot`; the page-table entry stays.
    Store = 2,
    /// Copy tier-0 frame `src_frame` (another page of this session, which stays) into the frame, then install it.
    Copy = 3,
    /// Copy host frame `slab`/`slot`, which belongs to page `src_block`, into the frame and install it as `block`: copy on write.
    LoadCopy = 4,
    /// Invalidate all pages of `block` on all lanes; its frames are free afterwards.
    Drop = 5,
    /// Invalidate the one page in `frame`; the frame is free afterwards.
    Evict = 6,
    /// Cancel job `src_block` (a job id) if its copy has not begun; that job then completes with [`Status::Canceled`].
    Cancel = 7,
    /// Copy tier-0 frame `src_frame`, which shows the page, into the frame and install the page there without a moment in which it
    /// is not resident. The copy runs while no lane is in a step; a lane that begins a step waits until the copy has ended. In this
    /// way an unsealed page, which the engine writes, moves to another frame; the old frame is free afterwards. `Io`: the page
    /// stays in the old frame.
    Move = 8,
    /// Copy block `src_frame` of the engine's own memory, restricted to the plane, out to host frame `slab`/`slot`.
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

    /// Decode a kind from the other process.
    #[must_use]
    pub fn from_code(code: u16) -> Option<JobKind> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Flag in [`Job::flags`] of a copy between host memory and tier 0, or the engine's own memory: the page is in the integrity
/// sample. A [`JobKind::Store`] or [`JobKind::Gather`] reports the digest of the page at its source ([`JobDone::digest`]). A
/// [`JobKind::Load`], [`JobKind::LoadCopy`] or [`JobKind::Scatter`] compares the digest of the bytes that landed in tier 0 with
/// [`Job::digest`] before it installs them, and ends with [`Status::Corrupt`] if they differ. A digest is the CRC-32C (Castagnoli)
/// of the page's bytes.
pub const CANARY: u32 = 1;

/// A copy or table change that the daemon planned and the agent carries out.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Job {
    /// [`JobKind`] code.
    pub kind: u16,
    /// Plane of the page.
    pub plane: u16,
    /// Plane of the victim.
    pub victim_plane: u16,
    /// Lane whose last use of the victim must end first ([`Job::use_pos`]); [`NONE_U16`]: invalidate at each lane's next boundary.
    pub use_lane: u16,
    /// Id of the job and of its completion; unique among the session's jobs in flight.
    pub id: u32,
    /// Block of the page.
    pub block: u32,
    /// Tier-0 frame to read or write.
    pub frame: u32,
    /// Source frame of a [`JobKind::Copy`] or [`JobKind::Move`]; the engine's block of a [`JobKind::Gather`] or
    /// [`JobKind::Scatter`].
    pub src_frame: u32,
    /// Source block of a [`JobKind::LoadCopy`], job id of a [`JobKind::Cancel`].
    pub src_block: u32,
    /// Block of the page that the frame shows now, [`NONE_U32`] if none.
    pub victim_block: u32,
    /// Host slab.
    pub slab: u32,
    /// Host frame within the slab; byte offset = slot × the class's stride.
    pub slot: u32,
    /// Position of the victim's last use on `use_lane`: step × planes + plane. The lane is past it when its own position is
    /// greater, or when it is equal and a boundary of that plane has followed the boundary at which the victim was readable.
    pub use_pos: u64,
    /// 0 or [`CANARY`].
    pub flags: u32,
    /// Expected digest of the page's bytes, for a [`JobKind::Load`] or [`JobKind::LoadCopy`] with [`CANARY`]. Zero otherwise.
    pub digest: u32,
    /// Zero.
    pub pad: u64,
}

/// The completion of a [`Job`], agent to daemon: exactly one for each.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct JobDone {
    /// [`Job::id`].
    pub id: u32,
    /// [`Status`] code: `Ok`, `Busy` (the victim was acquired in the meantime; nothing was done), `Canceled`, `Io`, `Invalid`,
    /// `Corrupt` (the loaded bytes differ from the stored ones and were not installed).
    pub status: i32,
    /// Bytes copied. Success requires the page's size; any other number is a failure.
    pub bytes: u64,
    /// Nanoseconds from the start of the job to its end.
    pub elapsed_ns: u64,
    /// [`CANARY`] if `digest` was computed: for a job that requested it and ended `Ok` or `Corrupt`. 0 otherwise.
    pub flags: u32,
    /// Digest of the page in tier 0. Zero otherwise.
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
    /// Create an answer without results.
    #[must_use]
    pub fn new(op: u16, tag: u16, status: Status) -> Completion {
        Completion { op, tag, status: status.code(), ..Completion::default() }
    }
}

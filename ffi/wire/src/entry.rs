//! Ring entries: one 64-byte cache line each, little endian, no pointers.
//!
//! All fields that an engine wrote are untrusted: the daemon copies an entry once, then validates the copy.

use crate::status::Status;
pub use kvtide_types::{Advice, Contract, JobKind, LEASE_SHARE, Level, Op};
use kvtide_types::{Message, NONE};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a ring entry.
pub const ENTRY_BYTES: usize = 64;
/// `u32` words in the list area of a request tag (see [`Submission::list_len`]).
pub const LIST_WORDS: usize = 512;
/// No sequence, block, frame or lane.
pub const NONE_U32: u32 = u32::MAX;
const _: () = assert!(NONE_U32 == NONE);
/// No lane.
pub const NONE_U16: u16 = u16::MAX;

/// In [`Submission::trace`]: the trace context of the request (trace id, then span id, low word first: 6 words) stands behind its list.
/// `list_len` does not count it. Only if the Welcome has feature bit 0.
pub const TRACED: u32 = 1;

/// A request, engine to daemon. [`Request`](kvtide_types::Request) declares which fields each request uses.
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
    /// 0 or [`TRACED`].
    pub trace: u32,
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
    /// Result, see [`Request`](kvtide_types::Request).
    pub value: u64,
    /// Zero.
    pub pad: [u64; 5],
}

/// Flag in [`Job::flags`] of a copy between host memory and tier 0, or the engine's own memory: the page is in the integrity
/// sample. A [`JobKind::CopyOut`] or [`JobKind::Gather`] reports the digest of the page at its source ([`JobDone::digest`]). A
/// [`JobKind::CopyIn`], [`JobKind::CopyInAs`] or [`JobKind::Scatter`] compares the digest of the bytes that landed in tier 0 with
/// [`Job::digest`] before it installs them, and ends with [`Status::Corrupt`] if they differ. A digest is the CRC-32C (Castagnoli)
/// of the page's bytes.
pub const SAMPLED: u32 = 1;

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
    /// Source block of a [`JobKind::CopyInAs`], job id of a [`JobKind::Cancel`].
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
    /// 0 or [`SAMPLED`].
    pub flags: u32,
    /// Expected digest of the page's bytes, for a [`JobKind::CopyIn`] or [`JobKind::CopyInAs`] with [`SAMPLED`]. Zero otherwise.
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
    /// [`SAMPLED`] if `digest` was computed: for a job that requested it and ended `Ok` or `Corrupt`. 0 otherwise.
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

impl Submission {
    /// Return the fields that a request uses.
    #[must_use]
    pub fn message(&self) -> Message {
        let Submission { op, lane, flags, seq, block, first, count, value, hash: [low, high], .. } = *self;
        let hash = u128::from(high) << 64 | u128::from(low);
        Message { kind: op, lane, flags, seq, block, first, count, value, hash }
    }
}

impl From<Message> for Submission {
    fn from(message: Message) -> Submission {
        let Message { kind, lane, flags, seq, block, first, count, value, hash } = message;
        let hash = [hash as u64, (hash >> 64) as u64];
        Submission { op: kind, lane, flags, seq, block, first, count, value, hash, ..Submission::default() }
    }
}

impl Completion {
    /// Create an answer without results.
    #[must_use]
    pub fn new(op: u16, tag: u16, status: Status) -> Completion {
        Completion { op, tag, status: status.code(), ..Completion::default() }
    }
}

//! The agent's protocol as pure memory: page tables per lane, the daemon's jobs, steps, pins. No system call, no clock, no
//! lock, no policy. The session (`crate::agent`) and the simulator drive these very types; loom checks them.
//!
//! [`Shared`] is what threads share; [`LaneView`] (and [`step::Reader`] on top of it) belongs to one lane's thread;
//! [`Mover`] belongs to whoever pumps jobs. The rules:
//!
//! 1. Only the mover changes which page a frame shows. It writes every change to the log: *publish* (page, frame) after the
//!    frame's bytes are complete, *unpublish* (page, frame) before the frame may be overwritten.
//! 2. A lane applies the log to its own table at its boundaries, in log order, and then stores how far it has applied
//!    (Release; the mover loads it with Acquire, so the lane's reads of a frame come before its overwriting).
//! 3. An unpublish clears an entry only if it still shows that frame: the page may have been published elsewhere meanwhile.
//! 4. An unpublish may name a lane and a position (step × planes + plane): that lane keeps the entry until its use is over,
//!    and says so in a hold word of the job's slot before it stores how far it has applied. All other lanes clear at once.
//! 5. A frame is overwritten only after every lane either is quiescent, or has applied its unpublish and does not hold it.
//! 6. A lane between end and begin is quiescent: it reads nothing and holds nothing. Begin is a Dekker handshake: the lane
//!    stores "active", SeqCst fence, loads the log's end; the mover stores the log's end, SeqCst fence, loads "active". So
//!    either the lane sees the unpublish, or the mover sees the lane. A catch-up at begin never holds.
//! 7. Log slots are reused. The mover claims the indices that it may write (`limit`), SeqCst fence, and waits for active lanes
//!    that still need the old entries. A lane that begins and finds `limit` beyond its own lap rebuilds its table from
//!    [`Shared`]'s frame words, which are stored (Release) before the log's end.
//! 8. Pins: the pinner counts its blocks, SeqCst fence, looks whether they are resident; the mover takes the victim out of the
//!    master table, SeqCst fence, looks whether it is pinned, and if so puts it back and answers `Busy`.
//! 9. A job either does all of what it says or, answered `Busy`, `Canceled` or `Invalid`, nothing. `Io`, `Corrupt`: its victim
//!    is gone and its frame shows nothing. A copy that has begun is waited for, whoever cancels it.
//! 10. The canary: what a load brings is hashed where it landed, before it is published; bytes that are not those that were
//!     stored are `Corrupt` and shown to nobody.
//! 11. A lane whose reads are enqueued, not done, when it calls (a stream of a device) has a [`Tracks`]: it *marks* what is
//!     enqueued before it stores how far it has applied, before it gives a hold up, and before it becomes quiescent; whoever
//!     overwrites a frame comes after every lane's mark. A page that was published without a copy (`Map`) shows a frame that
//!     other lanes' enqueued work may still read: the lane *follows* their marks before it writes there.
//! 12. A Move gives a page that the engine writes another frame, so no lane may be in a step from before its copy begins until the
//!     new entry is in the log. The mover closes the gate, SeqCst fence, looks whether every lane is quiescent, and opens it again
//!     if one is not; a lane stores "active", SeqCst fence, looks at the gate, and if it is closed is quiescent again and
//!     does not begin. The gate opens (Release) with the last Move's end; a lane that finds it open (Acquire) sees the log.

pub mod geometry;
mod lane;
mod log;
mod mover;
#[cfg(feature = "mutants")]
pub mod mutants;
#[cfg(not(feature = "mutants"))]
mod mutants;
mod pins;
mod rules;
pub mod seqs;
mod shared;
pub mod step;
mod tracks;
pub(super) mod zeroed;

pub use geometry::Geometry;
pub use lane::LaneView;
pub use mover::{Copied, CopyOp, Ended, Full, Mover, Place};
pub use pins::{PageRange, PinId, Pins};
pub use seqs::SeqTable;
pub use shared::Shared;
pub use tracks::Tracks;

/// Entries of a page table: the layout that kernels read is the wire's.
use kvtide_wire::table::{NOT_PRESENT as ABSENT, decode as frame_of, encode as entry_of};

//! The agent's protocol on memory alone: page tables per lane, the daemon's jobs, steps, pins. It makes no system calls, reads
//! no clock, takes no locks and makes no policy decisions. The session (`crate::agent`) and the simulator use the same types;
//! loom checks them.
//!
//! [`Shared`] is the state that threads share. [`LaneView`] (and [`step::Reader`] on top of it) belongs to one lane's thread.
//! [`Mover`] belongs to the thread that runs the copy loop. The rules:
//!
//! 1. Only the mover changes which page a frame shows. It writes every change to the log: *install* (page, frame) after the
//!    frame's bytes are complete, *invalidate* (page, frame) before the frame may be overwritten.
//! 2. A lane applies the log to its own table at its boundaries, in log order, and then stores how far it has applied (Release;
//!    the mover loads it with Acquire, so the lane's reads of a frame come before the frame is overwritten).
//! 3. An invalidation clears an entry only if the entry still shows that frame: the page may have been installed elsewhere
//!    meanwhile.
//! 4. An invalidation may name a lane and a position (step × planes + plane). That lane keeps the entry until its use is over, and
//!    records this in a hold word of the job's slot before it stores how far it has applied. All other lanes clear the entry at
//!    once. In a *gated* step, work that reads all planes is enqueued at once, and no boundary comes before the step's end. There
//!    the lane keeps the entry of a page that the device may read already (one the step needs in a plane that is complete) until
//!    the end in the same way, also if the invalidation names no lane or another one.
//! 5. A frame is overwritten only after every lane either is quiescent, or has applied the frame's invalidation and does not hold
//!    it.
//! 6. A lane between end and begin is quiescent: it reads nothing and holds nothing. Begin is a Dekker handshake. The lane
//!    stores "active", SeqCst fence, loads the log's end. The mover stores the log's end, SeqCst fence, loads "active". So
//!    either the lane sees the invalidation, or the mover sees the lane. A catch-up at begin never holds.
//! 7. Log slots are reused. The mover claims the indices that it may write (`limit`), SeqCst fence, and waits for active lanes
//!    that still need the old entries. A lane that begins and finds `limit` more than one lap ahead of its own position
//!    rebuilds its table from [`Shared`]'s frame words, which are stored (Release) before the log's end.
//! 8. Pins: the pinner counts its blocks, SeqCst fence, checks whether they are resident. The mover removes the victim from the
//!    master table, SeqCst fence, checks whether it is pinned. If so, it puts the victim back and answers `Busy`.
//! 9. A job either does everything that it asks for, or, if answered `Busy`, `Canceled` or `Invalid`, nothing. After `Io` or
//!    `Corrupt` its victim is gone and its frame shows nothing. A copy that has begun always runs to its end, even if the job
//!    is cancelled.
//! 10. The integrity sample: the bytes of a load are hashed at their destination before they are installed. Bytes that
//!     differ from the stored ones are `Corrupt` and never shown.
//! 11. A lane on a device stream only enqueues its reads before it calls; they happen later. It has a [`Tracks`]. It *marks*
//!     the enqueued work before it stores how far it has applied, before it releases a hold, and before it becomes quiescent. A
//!     write that overwrites a frame comes after every lane's mark. A page that was installed without a copy (`Install`) shows a
//!     frame that other lanes' enqueued work may still read: the lane *follows* their marks before it writes there. In a gated
//!     step a mark does not cover the step's own work, which may be enqueued after it: rule 4 keeps those pages, so that frames
//!     given up during the step are read only by work from before the step's first boundary. The end marks the rest.
//! 12. A Move gives another frame to a page that the engine writes. So no lane may be in a step from before its copy begins
//!     until the new entry is in the log. The mover closes the gate, SeqCst fence, checks whether every lane is quiescent, and
//!     opens the gate again if one is not. A lane stores "active", SeqCst fence, checks the gate; if it is closed, the lane
//!     becomes quiescent again and does not begin. The gate opens (Release) when the last Move ends; a lane that finds it open
//!     (Acquire) sees the log.

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

/// Entries of a page table. The wire crate defines the layout, because kernels read it.
use kvtide_wire::table::{NOT_PRESENT as ABSENT, decode as frame_of, encode as entry_of};

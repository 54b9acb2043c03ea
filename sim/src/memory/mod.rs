//! Simulated memory: frames that hold content tags, and devices that copy between them a piece at a time.
//!
//! A page has one tag for each of its token slots, so a partial write, a stale page and a page of another sequence all look
//! different from the right one. The engine writes and reads tags, devices move them; nothing here knows who may touch what:
//! that is what is under test.

mod arena;
mod device;

pub use arena::{Arena, ArenaId, Arenas, Place, Tag};
pub use device::{Copy, CopyFault, CopyId, Devices, Outcome, Pace, Progress};

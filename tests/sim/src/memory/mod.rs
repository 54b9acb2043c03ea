//! Simulated memory: frames that hold content tags, and devices that copy between them piece by piece.
//!
//! A page has one tag for each of its token slots, so a partial write, a stale page and a page of another sequence all differ from
//! the correct page. The engine writes and reads tags, devices move them. Access rights are not modelled here, because they are
//! under test.

mod arena;
mod device;

pub use arena::{Arena, ArenaId, Arenas, Place, Tag};
pub use device::{Copy, CopyFault, CopyId, Devices, Outcome, Pace, Progress};

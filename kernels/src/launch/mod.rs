//! Launches, called by an engine or the agent. There is one file for each kernel or family. It checks every shape and alignment
//! that the kernel relies on, returns an error with the reason, and enqueues on the caller's stream without waiting.
//!
//! A family is set up once per device, which loads its code. That never happens while a stream waits for a word of kvtide.
//! Addresses are numbers; the caller guarantees the memory behind them, so launches are unsafe. A launch without work enqueues
//! nothing.

mod append;
pub mod attention;
mod boundary;
mod check;
mod crc;
mod gather;
mod sketch;

pub use append::Append;
pub use boundary::Boundary;
pub use crc::{Crc, CrcList, SEGMENT as CRC_SEGMENT, segments as crc_segments};
pub use gather::{COPY_PIECE, Gather};
pub use sketch::Sketch;

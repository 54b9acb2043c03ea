//! Launches: what an engine or the agent calls. One file a kernel or family; each checks every shape and alignment that its
//! kernel relies on, says what is wrong in an error, and enqueues on the caller's stream without waiting.
//!
//! A family is set up once a device, which loads its code: never while a stream waits for a word of ours. Addresses are numbers;
//! what they point at is the caller's promise, so launches are unsafe. Nothing to do enqueues nothing.

mod append;
pub mod attention;
mod boundary;
mod check;
mod crc;
mod digest;
mod gather;
mod quant;
mod sketch;

pub use append::Append;
pub use boundary::Boundary;
pub use crc::{Crc, CrcList, SEGMENT as CRC_SEGMENT, segments as crc_segments};
pub use digest::Digest;
pub use gather::{COPY_PIECE, Gather};
pub use quant::{Codec, Quant};
pub use sketch::Sketch;

//! What engines ask about sequences: one file a call. Each validates everything it is told, then changes the tables of `pages`
//! and `sessions`, and leaves moving bytes to `plan`.

mod acquire;
mod bind;
mod commit;
mod create;
mod declare;
mod fork;
mod map;
mod ops;
mod park;
mod publish;
mod reserve;
mod table;

/// Priority of a sequence that none was given.
pub(crate) const NEUTRAL_PRIORITY: u8 = 128;

pub(crate) use publish::{HASHES_MAX, Publish};
pub(crate) use table::{CHUNK, Chunks, Seq};

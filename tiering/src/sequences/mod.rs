//! Requests about sequences, one file each. Each request validates its input, changes the tables of `pages` and `sessions`, and
//! leaves moving bytes to `plan`.

mod acquire;
mod attach_prefix;
mod commit;
mod create;
mod declare;
mod fork;
mod ops;
mod park;
mod publish;
mod reserve;
mod table;

/// Priority of a sequence without an explicit one.
pub(crate) const NEUTRAL_PRIORITY: u8 = 128;

pub(crate) use publish::{HASHES_MAX, Publish};
pub(crate) use table::{CHUNK, Chunks, Seq};

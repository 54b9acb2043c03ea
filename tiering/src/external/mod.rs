//! Engines that keep their KV in memory of their own, in blocks that they number themselves: pages are copied between those blocks
//! and host frames, by the same jobs, bounds and endings as everything that moves between tier 0 and host.
//!
//! - `lookup`: how long a cached prefix is, and a lease on it
//! - `load`: leased blocks into the engine's, or only up into host
//! - `store`: the engine's blocks into new ones, which become findable when all their pages have arrived
//! - `copies`: the blocks of such requests, and the jobs that copy them
//!
//! A lease is a sequence that holds the blocks of a prefix; it ends by itself at its time. A request that copies ends, however it ends, only
//! when no job of it is under way: then the engine may use its blocks again.
//!
//! Called by `space`; knows the tables of `pages` and `sessions`, and nothing of tier 0.

mod copies;
mod load;
mod lookup;
mod store;

pub(crate) use copies::Copies;
pub use lookup::LEASE_SHARE;
pub(crate) use lookup::{LEASE_AGAIN_US, LEASE_WORDS, Lease};
pub(crate) use store::Store;

//! Block API: engines that keep their KV in their own memory, in blocks that they number themselves. Pages are copied between those
//! blocks and host frames. Jobs, limits and error handling are the same as for copies between tier 0 and host.
//!
//! - `lookup`: length of a cached prefix, and a lease on it
//! - `load`: copies leased blocks into the engine's memory, or only reads them into host
//! - `store`: copies the engine's blocks into new blocks, which become findable when all their pages have arrived
//! - `hits`: counts what lookups asked for and found, and what loads brought
//! - `feed`: events and listings of the cache for relays
//! - `copies`: the blocks of such requests, and the jobs that copy them
//!
//! A lease is a sequence that holds the blocks of a prefix and ends by itself at its expiry time. A request that copies ends,
//! successful or not, only when none of its jobs is in flight. The engine may then use its blocks again.
//!
//! Called by `space`. It uses the tables of `pages` and `sessions`, and does not depend on tier 0.

mod block_copies;
mod feed;
mod load;
mod lookup;
mod ops;
mod store;

pub(crate) use block_copies::Copier;
use block_copies::{BlockCopy, Sent};
pub(crate) use lookup::{LEASE_AGAIN_US, LEASE_WORDS, Lease};
pub(crate) use store::StoreArgs;

use crate::host::HostTier;
use crate::layer::stands_on;
use crate::sessions::PerSession;

/// The block API over the cache, for one call.
pub(crate) struct BlockApi<'a> {
    pub(crate) below: &'a mut HostTier,
    pub(crate) copiers: &'a mut PerSession<Copier>,
}

stands_on!(BlockApi<'a>, HostTier);

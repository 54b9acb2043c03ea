//! Block API: engines that keep their KV in their own memory, in blocks that they number themselves. Pages are copied between those
//! blocks and host frames.
//!
//! - `lookup`: length of a cached prefix, and a lease on it
//! - `load`: copies leased blocks into the engine's memory, or cached blocks into a relay's
//! - `store`: copies the engine's blocks into new blocks, which become findable when all their pages have arrived
//! - `feed`: events and listings of the cache for relays
//! - `block_copies`: the blocks of such requests, and the jobs that copy them
//! - `ops`: the end of a request without success
//!
//! A lease is a sequence that holds the blocks of a prefix and ends by itself at its expiry time. It promises that a request that copies ends,
//! successful or not, only when none of its jobs is in flight: the engine may then use its blocks again. It does not know paging, and of
//! tier 0 only that a page may have to be stored from there.

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

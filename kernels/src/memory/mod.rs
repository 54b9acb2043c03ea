//! Memory that a device can reach: an arena that grows and shrinks at one address, plain buffers, host memory of ours and of others.
//!
//! Called by whoever owns tier 0 and by set-up code; never on a hot path. Addresses are plain numbers: what enqueues work on them
//! vouches that they stay until the work has been done. What lies in the memory is not known here.

mod arena;
mod buffer;
mod host;
pub(crate) mod pinned;
pub(crate) mod vmm;

pub use arena::Arena;
pub use buffer::Buffer;
pub use host::HostRegion;
pub use pinned::Pinned;

/// Rounds up to a multiple.
pub(crate) fn round_up(bytes: u64, to: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(to)
}

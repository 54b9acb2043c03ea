//! Memory that a device can access: an arena that grows and shrinks at one address, plain buffers, kvtide's own and other host
//! memory.
//!
//! Called by the owner of tier 0 and by set-up code; never on a hot path. Addresses are plain numbers. A caller that enqueues work
//! on them guarantees that they stay valid until the work is done. The content of the memory is not interpreted here.

mod arena;
mod buffer;
mod host;
pub(crate) mod pinned;
pub(crate) mod vmm;

pub use arena::Arena;
pub use buffer::Buffer;
pub use host::HostRegion;
pub use pinned::Pinned;

/// Round up to a multiple.
pub(crate) fn round_up(bytes: u64, to: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(to)
}

//! The node: what spaces share. Host memory ([`Node`]) and regions of disks ([`Disks`]), granted to them in slabs by quota,
//! bounded in total.
//!
//! Sans-IO like the core: it says what is whose; the shell makes the memory and writes the files. It knows nothing of blocks or
//! sessions. A slab is of one space, so nothing is ever shared across domains.

mod disks;
mod memory;

pub use disks::{DiskConfig, DiskGrant, DiskStatus, Disks, DisksConfig, Evicted, NoDisk, NoSlot};
pub use memory::{FrameClass, Grant, Node, NodeConfig};

/// Slab ids of a space are below this, those of host memory and those on NVMe apart.
const SLABS_MAX: usize = 1 << 16;

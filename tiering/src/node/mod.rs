//! The node: resources shared by the spaces. Host memory ([`Node`]) and regions of disks ([`Disks`]) are granted in slabs, within
//! quotas and a total limit.
//!
//! Sans-IO like the core: it does the accounting; the daemon allocates the memory and writes the files. It does not depend on
//! blocks or sessions. A slab belongs to one space, so domains never share one.

mod disks;
mod memory;

pub use disks::{DiskConfig, DiskGrant, DiskStatus, Disks, DisksConfig, Evicted, NoDisk, NoSlot};
pub use memory::{FrameClass, Grant, Node, NodeConfig};

/// Slab ids of a space are below this; host memory and NVMe have separate ids.
const SLABS_MAX: usize = 1 << 16;

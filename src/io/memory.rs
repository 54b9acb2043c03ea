//! Host memory as the device sees it.

use kvtide_wire::os::map::Map;
use std::sync::atomic::AtomicU32;

/// Disks of a daemon.
pub(crate) const DISKS_MAX: usize = 16;

/// Mapped host memory (a slab) that transfers read and write. What a transfer names lives as long as the transfer.
#[derive(Debug)]
pub(crate) struct Memory {
    map: Map,
    /// By disk: where the memory is registered with the disk's ring. Written by the disk's thread alone.
    places: [AtomicU32; DISKS_MAX],
}

impl Memory {
    /// From a map that can be written; `None` if it cannot.
    pub fn new(map: Map) -> Option<Memory> {
        map.as_mut_ptr()?;
        Some(Memory { map, places: [const { AtomicU32::new(0) }; DISKS_MAX] })
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.map.len() as u64
    }
}

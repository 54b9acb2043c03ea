//! Host memory for device I/O.

use kvtide_wire::os::map::Map;
use memmap2::MmapRaw;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum number of disks per daemon.
pub const DISKS_MAX: usize = 16;
/// Largest range that a ring registers as one buffer; 2 GiB fails with EFAULT.
pub(super) const BUFFER_BYTES: u64 = 1 << 30;

/// Mapped host memory (a slab) that transfers read and write. A transfer keeps its memory alive.
///
/// Engines that map the same memory can change it at any time. If they change a page during a transfer, only that page is lost: its
/// checksum will not match.
#[derive(Debug)]
pub struct Memory {
    map: Map,
    at: *mut u8,
    /// By disk: 1 + the index of the first buffer under which the memory is registered with the disk's ring; 0: not registered.
    /// Written only by the disk's thread.
    places: [AtomicU32; DISKS_MAX],
}

// SAFETY: `at` points into `map`, which is Send; the memory is not bound to a thread.
unsafe impl Send for Memory {}
// SAFETY: no references to the bytes are handed out; `at` is only used for reads and writes by the kernel and for checksums.
unsafe impl Sync for Memory {}

impl Memory {
    /// Create it from a writable map; None if the map is read-only.
    pub fn new(map: Map) -> Option<Memory> {
        let at = map.as_mut_ptr()?;
        Some(Memory { map, at, places: [const { AtomicU32::new(0) }; DISKS_MAX] })
    }

    /// Return the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// Return true if `bytes` from `offset` are inside the memory.
    pub(super) fn holds(&self, offset: u64, bytes: u64) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.bytes())
    }

    /// Return the address of an offset. It is inside the memory if [`Memory::holds`] returned true.
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        self.at.wrapping_add(offset as usize)
    }

    /// Return the registered buffer that contains the whole range on a disk's ring, if any.
    pub(super) fn buffer(&self, disk: u16, offset: u64, bytes: u64) -> Option<u16> {
        let first = self.places[usize::from(disk)].load(Ordering::Relaxed).checked_sub(1)?;
        let piece = offset / BUFFER_BYTES;
        let one = bytes > 0 && (offset + bytes - 1) / BUFFER_BYTES == piece;
        one.then(|| u16::try_from(u64::from(first) + piece).ok()).flatten()
    }

    /// Record where the memory is registered. Only for the disk's thread.
    pub(super) fn place(&self, disk: u16, first: Option<u32>) {
        self.places[usize::from(disk)].store(first.map_or(0, |first| first + 1), Ordering::Relaxed);
    }

    /// Return where the memory is registered.
    pub(super) fn placed(&self, disk: u16) -> Option<u32> {
        self.places[usize::from(disk)].load(Ordering::Relaxed).checked_sub(1)
    }
}

/// Page-aligned private memory of a disk.
#[derive(Debug)]
pub(super) struct Aligned {
    /// Unmapped on drop; `None` after a leak.
    map: Option<MmapRaw>,
    at: *mut u8,
    len: usize,
}

// SAFETY: it owns the memory, which is not bound to a thread.
unsafe impl Send for Aligned {}

impl Aligned {
    /// Allocate zeroed memory.
    pub fn new(bytes: usize) -> io::Result<Aligned> {
        let map = MmapRaw::from(memmap2::MmapMut::map_anon(bytes)?);
        Ok(Aligned { at: map.as_mut_ptr(), len: map.len(), map: Some(map) })
    }

    /// Leak the memory, because a device may still use it.
    pub fn leak(&mut self) {
        std::mem::forget(self.map.take());
    }

    /// Return the size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Return the start address.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at
    }

    /// Return the bytes. The owner must not call this while a device uses the memory.
    pub fn slice_mut(&mut self) -> &mut [u8] {
        // SAFETY: the range is the whole map, with no other references: `self` is borrowed mutably, and its owner does not call
        // this while the kernel uses the memory.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    /// Write bytes at an offset.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len() && bytes.len() <= self.len() - at, "a write of {} bytes at {at}", bytes.len());
        // SAFETY: the range was checked to lie in the map, with no other references: `self` is borrowed mutably, and its owner does
        // not call this while the kernel uses the range.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr().add(at), bytes.len()) }
    }
}

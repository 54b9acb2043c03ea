//! Host memory as the device sees it.

use kvtide_wire::os::map::Map;
use memmap2::MmapRaw;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// Disks of a daemon.
pub(crate) const DISKS_MAX: usize = 16;
/// Largest piece of memory that a ring registers as one buffer: 2 GiB is EFAULT.
pub(super) const BUFFER_BYTES: u64 = 1 << 30;

/// Mapped host memory (a slab) that transfers read and write. What a transfer names lives as long as the transfer.
///
/// Engines that map the same memory may change it at any time. What they change while a page of it is on its way is their own
/// loss: the page's checksum will not fit.
#[derive(Debug)]
pub(crate) struct Memory {
    map: Map,
    at: *mut u8,
    /// By disk: 1 + the index of the first buffer as which the memory is registered with the disk's ring; 0: it is not. Written
    /// by the disk's thread alone.
    places: [AtomicU32; DISKS_MAX],
}

// SAFETY: `at` points into `map`, which is Send; the memory has no thread of its own.
unsafe impl Send for Memory {}
// SAFETY: nothing hands out references to the bytes; `at` is only ever used for what the kernel or a checksum reads and writes.
unsafe impl Sync for Memory {}

impl Memory {
    /// From a map that can be written; `None` if it cannot.
    pub fn new(map: Map) -> Option<Memory> {
        let at = map.as_mut_ptr()?;
        Some(Memory { map, at, places: [const { AtomicU32::new(0) }; DISKS_MAX] })
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// Whether `bytes` from `offset` lie in it.
    pub(super) fn holds(&self, offset: u64, bytes: u64) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.bytes())
    }

    /// The address of a byte; of one within the memory if [`Memory::holds`] said so.
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        self.at.wrapping_add(offset as usize)
    }

    /// The buffer as which a range is registered with a disk's ring, if it is, and as one.
    pub(super) fn buffer(&self, disk: u16, offset: u64, bytes: u64) -> Option<u16> {
        let first = self.places[usize::from(disk)].load(Ordering::Relaxed).checked_sub(1)?;
        let piece = offset / BUFFER_BYTES;
        let one = bytes > 0 && (offset + bytes - 1) / BUFFER_BYTES == piece;
        one.then(|| u16::try_from(u64::from(first) + piece).ok()).flatten()
    }

    /// Notes where the memory is registered. For the disk's thread.
    pub(super) fn place(&self, disk: u16, first: Option<u32>) {
        self.places[usize::from(disk)].store(first.map_or(0, |first| first + 1), Ordering::Relaxed);
    }

    /// Where the memory is registered.
    pub(super) fn placed(&self, disk: u16) -> Option<u32> {
        self.places[usize::from(disk)].load(Ordering::Relaxed).checked_sub(1)
    }
}

/// Page-aligned memory of a disk's own.
#[derive(Debug)]
pub(super) struct Aligned {
    /// Unmaps it at the drop; `None` after a leak.
    map: Option<MmapRaw>,
    at: *mut u8,
    len: usize,
}

// SAFETY: the memory is its own and has no thread.
unsafe impl Send for Aligned {}

impl Aligned {
    /// Zeroed memory.
    pub fn new(bytes: usize) -> io::Result<Aligned> {
        let map = MmapRaw::from(memmap2::MmapMut::map_anon(bytes)?);
        Ok(Aligned { at: map.as_mut_ptr(), len: map.len(), map: Some(map) })
    }

    /// Leaves the memory to a device that may still use it: it is never unmapped.
    pub fn leak(&mut self) {
        std::mem::forget(self.map.take());
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Its begin.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at
    }

    /// The bytes. Not while a device has them: its owner sees to that.
    pub fn slice_mut(&mut self) -> &mut [u8] {
        // SAFETY: the map's own range, which nobody else refers to: `self` is borrowed mutably, and its owner does not call this while
        // the kernel has it.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    /// Writes at an offset.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len() && bytes.len() <= self.len() - at, "a write of {} bytes at {at}", bytes.len());
        // SAFETY: the range was checked to lie in the map, which nobody else refers to: `self` is borrowed mutably, and its
        // owner does not call this while the kernel has the range.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr().add(at), bytes.len()) }
    }
}

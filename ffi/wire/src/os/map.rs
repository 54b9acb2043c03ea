//! Maps of shared memory, accessed only as atomics.
//!
//! Another process writes this memory at any time, so no reference to plain data in it may ever exist. [`Part`] hands out
//! references to types made of atomics only, for which all bit patterns are valid. Bulk bytes (KV pages) are accessed through raw
//! pointers, by code that follows the page protocol.

use super::aligned::SharedMap;
use super::failed;
use crate::error::Error;
use crate::layout::LaneLine;
use crate::lists::ListArea;
use crate::ring::Slot;
use crate::score::ScoreSlot;
use crate::sync::{AtomicU32, AtomicU64};
use rustix::io::Errno;
use rustix::mm::{Advice, ProtFlags};
use std::format;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Access rights of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only: a store raises SIGSEGV.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// A shared map of a whole memfd. From 2 MiB on, its address is a multiple of 2 MiB, so that huge pages are mapped as such.
#[derive(Debug)]
pub struct Map {
    raw: SharedMap,
    access: Access,
}

impl Map {
    /// Map the first `bytes` of a descriptor and populate the page tables, so that the first use does not fault.
    pub fn new(fd: BorrowedFd<'_>, bytes: u64, access: Access) -> Result<Map, Error> {
        let on = || format!("{bytes} bytes, {access:?}");
        let len = usize::try_from(bytes).map_err(|_| failed("mmap", on(), Errno::OVERFLOW))?;
        let rights = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let raw = SharedMap::new(fd, len, rights, true).map_err(|e| failed("mmap", on(), e))?;
        Ok(Map { raw, access })
    }

    /// Exclude the map from forked children and core dumps. For engines: their children must not hold the session's memory, and
    /// their dumps must not hold gigabytes of KV.
    pub fn private_to_this_process(self) -> Result<Map, Error> {
        for (advice, tried) in
            [(Advice::LinuxDontFork, "madvise(MADV_DONTFORK)"), (Advice::LinuxDontDump, "madvise(MADV_DONTDUMP)")]
        {
            // SAFETY: exactly this map; the advice changes neither its content nor its access rights.
            let advised = unsafe { rustix::mm::madvise(self.raw.start(), self.raw.bytes(), advice) };
            advised.map_err(|e| failed(tried, format!("{} bytes", self.len()), e))?;
        }
        Ok(self)
    }

    /// Return the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.bytes()
    }

    /// Return false: an empty map cannot exist.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raw.bytes() == 0
    }

    /// Return the start of the map, for reading; see the module's head.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.raw.start().cast()
    }

    /// Return the start of the map, for writing; `None` if it is read-only. See the module's head.
    #[must_use]
    pub fn as_mut_ptr(&self) -> Option<*mut u8> {
        (self.access == Access::ReadWrite).then(|| self.raw.start().cast())
    }
}

/// Types that may be overlaid on shared memory.
///
/// # Safety
/// Every field is an atomic or padding: all bit patterns are valid, and a shared reference allows for changes from outside.
pub(crate) unsafe trait Overlay: Sync {}
// SAFETY: an atomic.
unsafe impl Overlay for AtomicU32 {}
// SAFETY: an atomic.
unsafe impl Overlay for AtomicU64 {}
// SAFETY: an array of atomics.
unsafe impl Overlay for Slot {}
// SAFETY: an array of atomics.
unsafe impl Overlay for ListArea {}
// SAFETY: atomics only.
unsafe impl Overlay for ScoreSlot {}
// SAFETY: atomics and padding.
unsafe impl Overlay for LaneLine {}

/// A reference into a map that keeps the map alive.
#[derive(Debug)]
pub struct Part<T: ?Sized> {
    at: NonNull<T>,
    map: Arc<Map>,
}

// SAFETY: a Part is a shared reference to a Sync type together with its owner, which is Send and Sync itself.
unsafe impl<T: ?Sized + Sync> Send for Part<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for Part<T> {}

impl<T: ?Sized> Clone for Part<T> {
    fn clone(&self) -> Self {
        Part { at: self.at, map: Arc::clone(&self.map) }
    }
}

impl<T: ?Sized> Deref for Part<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: construction checked that `at` lies within the map and is aligned; the map lives as long as `self.map`, its memfd
        // cannot shrink (sealed), and T is an Overlay: atomics only, so changes from outside are allowed.
        unsafe { self.at.as_ref() }
    }
}

/// Check range and alignment. Both follow from the layout, so a failure is a bug or a wrong message from the peer.
fn locate(map: &Map, offset: u64, bytes: usize, align: usize) -> Result<NonNull<u8>, Error> {
    let end = offset.checked_add(bytes as u64);
    let fits = end.is_some_and(|end| end <= map.len() as u64);
    let address = (map.as_ptr() as u64).wrapping_add(offset);
    match NonNull::new(map.as_ptr().cast_mut().wrapping_add(offset as usize)) {
        Some(at) if fits && address.is_multiple_of(align as u64) => Ok(at),
        _ => Err(Error::Bound { what: "offset in a map", value: offset, min: 0, max: map.len() as u64 }),
    }
}

/// Return one `T` at a byte offset.
pub(crate) fn part<T: Overlay>(map: &Arc<Map>, offset: u64) -> Result<Part<T>, Error> {
    let at = locate(map, offset, size_of::<T>(), align_of::<T>())?.cast();
    Ok(Part { at, map: Arc::clone(map) })
}

/// Return `count` items of `T` from a byte offset on.
pub(crate) fn parts<T: Overlay>(map: &Arc<Map>, offset: u64, count: usize) -> Result<Part<[T]>, Error> {
    let bytes = count.saturating_mul(size_of::<T>());
    let at = locate(map, offset, bytes, align_of::<T>())?.cast();
    Ok(Part { at: NonNull::slice_from_raw_parts(at, count), map: Arc::clone(map) })
}

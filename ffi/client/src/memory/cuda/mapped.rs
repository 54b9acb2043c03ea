//! Mapped frames of a session with tier 0 on a device: the table through which kernels find pages in host memory. Eight bytes for
//! each mapped frame: the page's device address, 0 for none.
//!
//! An entry is changed by a normal copy, from a word of pinned memory that only this copy uses. The copy comes after all lanes'
//! marks, so the old entry is no longer in use. It completes before the page is installed or the eviction reported, so the new
//! entry is not used too early, and the old host frame is not reused too early.

use super::error;
use crate::{Error, Result};
use kvtide_kernels::{Buffer, Device, Pinned};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Bytes of an entry.
pub(super) const ENTRY: usize = 8;

/// The table on the device, and the source words of its entries.
#[derive(Debug)]
pub(crate) struct MappedFrames {
    table: Buffer,
    words: Pinned,
}

impl MappedFrames {
    /// Create a table for `count` mapped frames.
    ///
    /// # Errors
    /// [`Error::Options`]: the device's kernels cannot read registered host memory. The device or the host has no memory left.
    pub fn new(device: &Arc<Device>, count: usize) -> Result<MappedFrames> {
        let works = device.works().map_err(|e| error("test the device's capabilities", e))?;
        let refused = |e: kvtide_kernels::Error| Error::Options { option: "mapped_frames", why: e.to_string() };
        works.in_place.demand("mapped_frames", device).map_err(refused)?;
        let doing = "create the table of mapped frames";
        let table = Buffer::new(device, count * ENTRY).map_err(|e| error(doing, e))?;
        let words = Pinned::new(device, count * ENTRY).map_err(|e| error(doing, e))?;
        Ok(MappedFrames { table, words })
    }

    /// Return the table's device address.
    pub fn address(&self) -> u64 {
        self.table.address()
    }

    /// Return the source and destination, as device addresses, of the copy that makes a mapped frame show `page`. `None`: no such
    /// mapped frame.
    pub fn entry(&self, mapped: usize, page: u64) -> Option<(u64, u64)> {
        let at = mapped * ENTRY;
        if at + ENTRY > self.words.bytes() {
            return None;
        }
        // SAFETY: inside our mapping and aligned; written only by the copy loop while no copy reads it: no two of the mover's jobs
        // in flight use the same mapped frame, and an atomic store is never torn for a late reader.
        let word = unsafe { &*self.words.as_ptr().add(at).cast::<AtomicU64>() };
        word.store(page, Ordering::Release);
        Some((self.words.address() + at as u64, self.table.address() + at as u64))
    }
}

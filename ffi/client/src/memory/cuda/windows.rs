//! The windows of a session whose tier 0 is on a device: the table through which kernels find a page that shows where it is in host
//! memory. Eight bytes a window: the device's address of the page, 0 for none.
//!
//! An entry is changed by a copy like any other, from a word of ours that the copy alone uses: behind all lanes' marks, so nobody
//! reads through the old one any more, and before the page is published, or the eviction reported, so nobody reads the new one
//! too early and the host frame is not another's too early.

use super::error;
use crate::{Error, Result};
use kvtide_kernels::{Buffer, Device, Pinned};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Bytes of an entry.
pub(super) const ENTRY: usize = 8;

/// The table on the device, and the words that go there.
#[derive(Debug)]
pub(crate) struct Windows {
    table: Buffer,
    words: Pinned,
}

impl Windows {
    /// A table of `count` windows.
    ///
    /// # Errors
    /// [`Error::Options`]: the device's kernels cannot read host memory that is registered. The device or the host is full.
    pub fn new(device: &Arc<Device>, count: usize) -> Result<Windows> {
        let works = device.works().map_err(|e| error("try what the device can do", e))?;
        let refused = |e: kvtide_kernels::Error| Error::Options { option: "host_windows", why: e.to_string() };
        works.in_place.demand("host_windows", device).map_err(refused)?;
        let doing = "make the table of windows";
        let table = Buffer::new(device, count * ENTRY).map_err(|e| error(doing, e))?;
        let words = Pinned::new(device, count * ENTRY).map_err(|e| error(doing, e))?;
        Ok(Windows { table, words })
    }

    /// The table's address on the device.
    pub fn address(&self) -> u64 {
        self.table.address()
    }

    /// Where the copy that has a window show `page` reads and writes, as the device sees it. `None`: there is no such window.
    pub fn entry(&self, window: usize, page: u64) -> Option<(u64, u64)> {
        let at = window * ENTRY;
        if at + ENTRY > self.words.bytes() {
            return None;
        }
        // SAFETY: inside our mapping and aligned; written by the pump alone while no copy reads it: of the mover's jobs in flight no
        // two are on one window, and an atomic store is never torn for whoever reads late.
        let word = unsafe { &*self.words.as_ptr().add(at).cast::<AtomicU64>() };
        word.store(page, Ordering::Release);
        Some((self.words.address() + at as u64, self.table.address() + at as u64))
    }
}

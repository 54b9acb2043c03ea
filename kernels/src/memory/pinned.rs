//! Host memory of our own that a device reads and writes in place: rings, status words, staging of small things.
//!
//! An anonymous mapping, registered: never `cuMemHostAlloc`, whose pages other users of memory (io_uring) may refuse, and never
//! write-combined, which the host reads at a crawl.

use super::{host, round_up};
use crate::{Device, Error, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::{ffi::c_void, ptr::NonNull, sync::Arc};

/// Mappings are whole pages.
const PAGE: u64 = 4096;

/// Zeroed host memory, registered with a device.
pub struct Pinned {
    device: Arc<Device>,
    mapped: Mapped,
    bytes: usize,
}

/// A mapping and where the device sees it.
#[derive(Clone, Copy)]
pub(crate) struct Mapped {
    pub host: NonNull<u8>,
    pub device: u64,
    bytes: usize,
}

// SAFETY: plain memory; who reads and writes it through its raw pointer keeps order.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Maps and registers memory; it is zero.
    ///
    /// # Errors
    /// The system or the driver has no such memory to give, or nothing was asked for.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        let mapped = map(device, bytes)?;
        Ok(Self { device: Arc::clone(device), mapped, bytes })
    }

    /// Where the host sees it; aligned to a page.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapped.host.as_ptr()
    }

    /// Where the device sees it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.mapped.device
    }

    /// Its size, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.device.is_ours() {
            return; // The mapping was not inherited.
        }
        // A registration that cannot be undone (the device is lost) leaves pages that the driver holds: they stay mapped.
        if host::unregister(&self.device, self.mapped.host.as_ptr()).is_ok() {
            unmap(self.mapped.host, self.mapped.bytes);
        }
    }
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pinned({} bytes at {:?})", self.bytes, self.mapped.host)
    }
}

/// Memory like [`Pinned`]'s that is never given back.
pub(crate) fn map_for_ever(device: &Arc<Device>, bytes: usize) -> Result<Mapped> {
    map(device, bytes)
}

fn map(device: &Arc<Device>, bytes: usize) -> Result<Mapped> {
    let whole = round_up(bytes as u64, PAGE).and_then(|b| usize::try_from(b).ok()).filter(|&b| b > 0);
    let whole = whole.ok_or_else(|| Error::invalid("pinned memory", format!("{bytes} bytes cannot be mapped")))?;
    let system =
        |e: rustix::io::Errno| Error::System { doing: format!("mapping {whole} bytes to pin"), source: e.into() };
    // SAFETY: a fresh private mapping at an address of the kernel's choice overlaps nothing.
    let at = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let at = at.map_err(system)?;
    let Some(host) = NonNull::new(at.cast::<u8>()) else { return Err(system(rustix::io::Errno::NOMEM)) };
    // A forked child must not turn the pages that the device uses into copies.
    // SAFETY: exactly the mapping made above.
    if let Err(e) = unsafe { rustix::mm::madvise(at, whole, Advice::LinuxDontFork) } {
        unmap(host, whole);
        return Err(system(e));
    }
    // SAFETY: the mapping stays until it is unregistered.
    match unsafe { host::register(device, host.as_ptr(), whole) } {
        Ok(device) => Ok(Mapped { host, device, bytes: whole }),
        Err(e) => {
            unmap(host, whole);
            Err(e)
        }
    }
}

fn unmap(host: NonNull<u8>, bytes: usize) {
    // SAFETY: exactly a mapping that `map` made, registered no more, of which nothing is used any more.
    let _ = unsafe { rustix::mm::munmap(host.as_ptr().cast::<c_void>(), bytes) };
}

//! Host memory of kvtide that a device reads and writes in place: rings, status words, staging of small data.
//!
//! It is an anonymous mapping, registered. `cuMemHostAlloc` is not used, because other users of memory (io_uring) may refuse its
//! pages. The memory is not write-combined, which the host would read very slowly. From 2 MiB on it is on huge pages where the system
//! has them: the driver then pins one page instead of 512, and neither side misses its TLB as often.

use super::{host, round_up};
use crate::{Device, Error, Result};
use kvtide_wire::os::huge;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::{ffi::c_void, ptr::NonNull, sync::Arc};

/// Mappings are whole pages.
const PAGE: u64 = 4096;
/// Mappings of this size and more begin at a multiple of it, so that huge pages fit.
const HUGE: usize = huge::HUGE as usize;

/// Zeroed host memory, registered with a device.
pub struct Pinned {
    device: Arc<Device>,
    mapped: Mapped,
    bytes: usize,
}

/// A mapping and its address on the device.
#[derive(Clone, Copy)]
pub(crate) struct Mapped {
    pub host: NonNull<u8>,
    pub device: u64,
    bytes: usize,
}

// SAFETY: plain memory; users of its raw pointer order their accesses.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Map and register zeroed memory.
    ///
    /// # Errors
    /// The system or the driver has no such memory, or `bytes` is 0.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        let mapped = map(device, bytes)?;
        Ok(Self { device: Arc::clone(device), mapped, bytes })
    }

    /// Return its address on the host, aligned to a page.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapped.host.as_ptr()
    }

    /// Return its address on the device.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.mapped.device
    }

    /// Return its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Return how many of its bytes are on huge pages; `None` if the system does not say. Reads a description of all memory of the
    /// process.
    #[must_use]
    pub fn huge_bytes(&self) -> Option<u64> {
        huge::mapped_bytes(self.as_ptr(), self.mapped.bytes)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.device.is_ours() {
            return; // The mapping was not inherited.
        }
        // If the memory cannot be unregistered (the device is lost) the driver still holds the pages: they stay mapped.
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

/// Return memory like [`Pinned`]'s that is never freed.
pub(crate) fn map_for_ever(device: &Arc<Device>, bytes: usize) -> Result<Mapped> {
    map(device, bytes)
}

fn map(device: &Arc<Device>, bytes: usize) -> Result<Mapped> {
    let whole = round_up(bytes as u64, PAGE).and_then(|b| usize::try_from(b).ok()).filter(|&b| b > 0);
    let whole = whole.ok_or_else(|| Error::invalid("pinned memory", format!("{bytes} bytes cannot be mapped")))?;
    let system =
        |e: rustix::io::Errno| Error::System { doing: format!("mapping {whole} bytes to pin"), source: e.into() };
    let at = aligned(whole).map_err(system)?;
    let Some(host) = NonNull::new(at.cast::<u8>()) else { return Err(system(rustix::io::Errno::NOMEM)) };
    if whole >= HUGE {
        // A system without huge pages refuses the advice, and small pages do as well.
        // SAFETY: exactly the mapping made above; the advice changes no content.
        let _ = unsafe { rustix::mm::madvise(at, whole, Advice::LinuxHugepage) };
    }
    // A fork must not turn the pages that the device uses into copies.
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

/// Map whole pages, from [`HUGE`] bytes on at a multiple of that.
fn aligned(bytes: usize) -> rustix::io::Result<*mut c_void> {
    let around = if bytes >= HUGE { HUGE } else { 0 };
    let room = bytes.checked_add(around).ok_or(rustix::io::Errno::NOMEM)?;
    // SAFETY: a new private mapping at an address chosen by the kernel overlaps nothing.
    let window = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }?;
    let lead = if around > 0 { window.addr().next_multiple_of(HUGE) - window.addr() } else { 0 };
    let at = window.wrapping_byte_add(lead);
    for (rest, bytes) in [(window, lead), (at.wrapping_byte_add(bytes), around - lead)] {
        if bytes > 0 {
            // SAFETY: a part of the mapping made above that nobody uses.
            unsafe { rustix::mm::munmap(rest, bytes) }?;
        }
    }
    Ok(at)
}

fn unmap(host: NonNull<u8>, bytes: usize) {
    // SAFETY: exactly a mapping from `map`, unregistered, and not used any more.
    let _ = unsafe { rustix::mm::munmap(host.as_ptr().cast::<c_void>(), bytes) };
}

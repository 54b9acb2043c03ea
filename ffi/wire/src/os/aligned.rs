//! Shared maps of files at addresses where huge pages fit.
//!
//! The processor and the driver use a huge page as one only if its address in the process is a multiple of its size too. The
//! kernel chooses such addresses for shared memory only under some settings.

use super::huge::HUGE;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;

/// A shared map of the start of a file. From [`HUGE`] bytes on, its address is a multiple of [`HUGE`].
#[derive(Debug)]
pub(super) struct SharedMap {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: the map belongs to the process, not to a thread, and this type accesses none of its bytes.
unsafe impl Send for SharedMap {}
// SAFETY: as above.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Map the first `bytes` of a file. `populate`: fill the page tables now, so that the first use does not fault.
    pub fn new(fd: BorrowedFd<'_>, bytes: usize, rights: ProtFlags, populate: bool) -> Result<SharedMap, Errno> {
        const HUGE_BYTES: usize = HUGE as usize;
        let flags = MapFlags::SHARED | if populate { MapFlags::POPULATE } else { MapFlags::empty() };
        if bytes < HUGE_BYTES {
            // SAFETY: a new map at an address chosen by the kernel overlaps nothing.
            let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, rights, flags, fd, 0) }?;
            return Ok(SharedMap { start, bytes });
        }
        let whole = bytes.checked_next_multiple_of(rustix::param::page_size()).ok_or(Errno::NOMEM)?;
        let room = whole.checked_add(HUGE_BYTES).ok_or(Errno::NOMEM)?;
        let nothing = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new map at an address chosen by the kernel, without access rights.
        let window = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), nothing) }?;
        let lead = window.addr().next_multiple_of(HUGE_BYTES) - window.addr();
        let start = window.wrapping_byte_add(lead);
        // SAFETY: the range is within the window, which is ours and to which no reference exists.
        let mapped = unsafe { rustix::mm::mmap(start, bytes, rights, flags | MapFlags::FIXED, fd, 0) };
        unmap(window, lead);
        unmap(start.wrapping_byte_add(whole), room - whole - lead);
        // A failed map may have removed what was there, and another thread may already have mapped something there. So the addresses
        // between are left: they cost no memory.
        mapped.map(|_| SharedMap { start, bytes })
    }

    /// Return its address.
    pub fn start(&self) -> *mut c_void {
        self.start
    }

    /// Return its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        unmap(self.start, self.bytes);
    }
}

/// Unmap a range that this module mapped and to which no reference exists.
fn unmap(start: *mut c_void, bytes: usize) {
    if bytes > 0 {
        // SAFETY: guaranteed by the callers. Only a wrong range fails.
        let _ = unsafe { rustix::mm::munmap(start, bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    const BYTES: usize = 3 * HUGE as usize + 5000;

    /// Return the bytes of address space that this process uses.
    fn address_space() -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').next().unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
    }

    #[test]
    fn large_maps_begin_where_huge_pages_fit_and_take_no_address_space_around_them() {
        let fd = memfd_create("kvtide-aligned-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, BYTES as u64).unwrap();
        let map = |bytes| SharedMap::new(fd.as_fd(), bytes, ProtFlags::READ | ProtFlags::WRITE, false);
        let before = address_space();
        let maps: std::vec::Vec<_> = (0..1000).map(|_| map(BYTES).unwrap()).collect();
        assert!(maps.iter().all(|map| map.start().addr().is_multiple_of(HUGE as usize) && map.bytes() == BYTES));
        // Other tests map some hundred MiB at the same time; the rests of a thousand windows are 2 GiB.
        assert!(address_space() - before < 1000 * BYTES.next_multiple_of(4096) + (1 << 30));
        drop(maps);
        assert!(address_space() < before + (1 << 30));
        assert_eq!(map(4096).unwrap().bytes(), 4096);
        assert_eq!(map(usize::MAX - 1).unwrap_err(), Errno::NOMEM);
    }

    #[test]
    fn what_is_on_huge_pages_is_mapped_as_huge_pages() {
        let memfd = crate::os::memfd::Memfd::shared("kvtide-aligned-test", 8 * HUGE).unwrap();
        let map = memfd.map(crate::os::map::Access::ReadWrite).unwrap();
        if memfd.why_small().is_none() {
            let mapped = crate::os::huge::mapped_bytes(map.as_ptr(), map.len());
            assert_eq!((mapped, memfd.huge_bytes()), (Some(8 * HUGE), 8 * HUGE));
        }
    }
}

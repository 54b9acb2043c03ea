//! Shared memory on huge pages, where the system has them.
//!
//! A KV page then lies in one piece of physical memory. A device transfers it with one descriptor instead of one for each 4 KiB
//! (virtio allows 254 in a request, so a page of 1 MiB took two requests), and 2 MiB are zeroed at once instead of in 512 faults.
//! `MADV_COLLAPSE` (Linux 6.1) works with all system settings for shared memory except those that deny it.

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::io::Error;

/// Bytes of a huge page on every supported system, with base pages of 4 KiB.
pub(super) const HUGE: u64 = 2 << 20;

/// Allocate and zero the whole huge pages of an empty memfd of `bytes` bytes. Return the bytes allocated.
///
/// # Errors
/// The system's error. Some of the memory may be allocated then; all of it still reads as zeros.
pub(super) fn fill(fd: BorrowedFd<'_>, bytes: u64) -> Result<u64, Errno> {
    let whole = bytes / HUGE * HUGE;
    if whole == 0 {
        return Ok(0);
    }
    // The kernel treats a wholly empty extent as punched out, so each extent gets one page first.
    for at in (0..whole).step_by(HUGE as usize) {
        rustix::io::pwrite(fd, &[0], at)?;
    }
    let window = Window::new(whole as usize)?;
    window.collapse(fd, whole as usize)?;
    Ok(whole)
}

/// An address range that holds a map at a multiple of [`HUGE`].
struct Window {
    start: *mut libc::c_void,
    bytes: usize,
}

impl Window {
    fn new(bytes: usize) -> Result<Window, Errno> {
        let bytes = bytes + HUGE as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new map at an address chosen by the kernel, without access rights.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(last_error());
        }
        Ok(Window { start, bytes })
    }

    /// Map the file here and collapse its extents into huge pages, which remain in the file after the unmapping.
    fn collapse(&self, fd: BorrowedFd<'_>, whole: usize) -> Result<(), Errno> {
        let at = (self.start as usize).next_multiple_of(HUGE as usize) as *mut libc::c_void;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the range is within the window, which this value owns and to which no reference exists.
        let mapped = unsafe { libc::mmap(at, whole, libc::PROT_READ | libc::PROT_WRITE, flags, fd.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED {
            return Err(last_error());
        }
        // SAFETY: the map created above; collapsing changes no content.
        match unsafe { libc::madvise(at, whole, libc::MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(last_error()),
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the window's own addresses and the map in it, to which no reference exists.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    #[test]
    fn whole_huge_pages_are_allocated_and_the_rest_is_left() {
        let bytes = 2 * HUGE + 4096;
        let fd = memfd_create("kvtide-huge-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, bytes).unwrap();
        // The system may have no huge pages, or none free: then the content is still zero.
        let filled = fill(fd.as_fd(), bytes).unwrap_or(0);
        assert!(filled == 0 || filled == 2 * HUGE, "{filled}");
        let allocated = rustix::fs::fstat(&fd).unwrap().st_blocks as u64 * 512;
        assert!(allocated >= filled, "{allocated} of {filled} bytes");
        let mut content = std::vec![1; bytes as usize];
        assert_eq!(rustix::io::pread(&fd, &mut content, 0).unwrap(), bytes as usize);
        assert!(content.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn memory_that_cannot_be_mapped_for_writing_says_why() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(fill(file.as_fd(), HUGE), Err(Errno::BADF), "the file is open for reading alone");
    }

    #[test]
    fn less_than_a_huge_page_is_left_alone() {
        let fd = memfd_create("kvtide-huge-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, HUGE - 4096).unwrap();
        assert_eq!(fill(fd.as_fd(), HUGE - 4096), Ok(0));
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks, 0);
    }
}

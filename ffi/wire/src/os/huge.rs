//! Shared memory on huge pages, where the system has them.
//!
//! A KV page then lies in one piece of physical memory. A device transfers it with one descriptor instead of one for each 4 KiB
//! (virtio allows 254 in a request, so a page of 1 MiB took two requests), and 2 MiB are zeroed at once instead of in 512 faults.
//! `MADV_COLLAPSE` (Linux 6.1) works with all system settings for shared memory except those that deny it.

use super::aligned::SharedMap;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use std::io::Error;

/// Bytes of a huge page on every supported system, with base pages of 4 KiB.
pub const HUGE: u64 = 2 << 20;

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
    let map = SharedMap::new(fd, whole as usize, ProtFlags::READ | ProtFlags::WRITE, false)?;
    // SAFETY: the map created above, to which no reference exists; collapsing changes no content. The huge pages remain in the file
    // after the unmapping.
    match unsafe { libc::madvise(map.start(), map.bytes(), libc::MADV_COLLAPSE) } {
        0 => Ok(whole),
        _ => Err(last_error()),
    }
}

/// Return how many bytes of a map of this process are mapped as huge pages; `None` if the system does not say. A neighbour that the
/// kernel joined to the map counts too, up to `bytes`. Takes milliseconds in a process with thousands of maps.
#[must_use]
pub fn mapped_bytes(start: *const u8, bytes: usize) -> Option<u64> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let (mut inside, mut kib) = (false, 0u64);
    for line in smaps.lines() {
        let word = line.split(' ').next()?;
        if let Some((from, to)) = word.split_once('-') {
            let number = |text| usize::from_str_radix(text, 16).ok();
            inside = number(from)? < start.addr() + bytes && start.addr() < number(to)?;
        } else if inside && matches!(word, "AnonHugePages:" | "ShmemPmdMapped:") {
            kib += line[word.len()..].trim().trim_end_matches(" kB").parse::<u64>().ok()?;
        }
    }
    Some((kib << 10).min(bytes as u64))
}

/// Return errno.
pub(super) fn last_error() -> Errno {
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

//! Process id without a system call: every call must detect a handle that a forked child inherited.
//!
//! glibc does not cache `getpid`. A page that the kernel zeroes in a child (`MADV_WIPEONFORK`, Linux 4.14) can hold the cached
//! id: zero means that the id must be read again.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

const PAGE: usize = 4096;

static CACHE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Return the id of this process.
#[must_use]
pub fn id() -> u32 {
    let mut cache = CACHE.load(Ordering::Acquire);
    if cache.is_null() {
        let Some(fresh) = map_cache() else { return std::process::id() };
        cache = match CACHE.compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            // The page of the thread that lost the race stays mapped: at most 4 KiB for each thread that starts at the same
            // instant.
            Err(winner) => winner,
        };
    }
    // SAFETY: the page was mapped readable and writable and is never unmapped; a zeroed `AtomicU32` is a valid value.
    let cache = unsafe { &*cache };
    match cache.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            cache.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// Map the page. Return `None` if the kernel cannot wipe it on fork, so that a stale id is never used.
fn map_cache() -> Option<*mut AtomicU32> {
    // SAFETY: a fresh private mapping at an address that the kernel chooses overlaps nothing.
    let page = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }
    .ok()?;
    // SAFETY: the range is exactly the mapping made above.
    if unsafe { rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above; no other thread has seen the page.
        let _ = unsafe { rustix::mm::munmap(page, PAGE) };
        return None;
    }
    Some(page.cast())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_cached_id_is_that_of_this_process() {
        assert_eq!(super::id(), std::process::id());
        assert_eq!(super::id(), std::process::id());
    }
}

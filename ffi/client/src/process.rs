//! Which process this is, without a system call: a handle that a forked child inherited must be told apart on every call.
//!
//! glibc does not cache `getpid`. A page that the kernel zeroes in a child (`MADV_WIPEONFORK`, Linux 4.14) can: a zero there
//! means "ask again".

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

const PAGE: usize = 4096;

static CACHE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// The process id.
#[must_use]
pub fn id() -> u32 {
    let mut cache = CACHE.load(Ordering::Acquire);
    if cache.is_null() {
        let Some(fresh) = map_cache() else { return std::process::id() };
        cache = match CACHE.compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            // The page that lost the race stays mapped: 4 KiB at most once a thread that starts at the same instant.
            Err(winner) => winner,
        };
    }
    // SAFETY: the page was mapped readable and writable and is never unmapped; a zeroed `AtomicU32` is a valid one.
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

/// Maps the page; `None` where the kernel cannot wipe it, so that no stale id is ever believed.
fn map_cache() -> Option<*mut AtomicU32> {
    // SAFETY: a fresh private mapping at an address of the kernel's choice overlaps nothing.
    let page = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }
    .ok()?;
    // SAFETY: the range is exactly the mapping made above.
    if unsafe { rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above; nobody else has seen it.
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

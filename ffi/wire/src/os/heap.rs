//! Large allocations on huge pages, for a tool with random look-ups in tables of some hundred megabytes: with base pages most of
//! these look-ups also miss the TLB.
//!
//! Disabled until [`want_huge_pages`] is called. Zeroing a huge page takes a hundred times as long as zeroing a base page, and a
//! process that answers an engine in microseconds must not stop for it.

use super::huge::HUGE;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, Ordering};

static WANTED: AtomicBool = AtomicBool::new(false);

/// Put this process's future allocations on huge pages as far as they fill them, if [`Heap`] is its allocator and the system has
/// huge pages available.
pub fn want_huge_pages() {
    // Relaxed is enough: an allocation made at the same time may have either kind of pages.
    WANTED.store(true, Ordering::Relaxed);
}

/// An allocator that requests huge pages for the allocations of another allocator, once they are enabled.
#[derive(Debug)]
pub struct Heap<A>(
    /// The inner allocator.
    pub A,
);

/// Advise huge pages for the part of an allocation that fills them. This is a hint; a system without huge pages ignores it.
fn advise(at: *mut u8, bytes: usize) -> *mut u8 {
    const HUGE_BYTES: usize = HUGE as usize;
    if bytes >= HUGE_BYTES && !at.is_null() && WANTED.load(Ordering::Relaxed) {
        let first = at.addr().next_multiple_of(HUGE_BYTES);
        let end = (at.addr() + bytes) / HUGE_BYTES * HUGE_BYTES;
        if first < end {
            // SAFETY: the range is within an allocation of this process; the advice changes neither its content nor its access
            // rights.
            unsafe { libc::madvise(at.with_addr(first).cast(), end - first, libc::MADV_HUGEPAGE) };
        }
    }
    at
}

// SAFETY: each call is passed to an allocator that keeps the contract, and its result is returned unchanged.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Heap<A> {
    // SAFETY: the caller guarantees the inner allocator's contract, here and below.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        advise(unsafe { self.0.alloc(layout) }, layout.size())
    }

    // SAFETY: see `alloc`.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        advise(unsafe { self.0.alloc_zeroed(layout) }, layout.size())
    }

    // SAFETY: see `alloc`.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        advise(unsafe { self.0.realloc(at, layout, bytes) }, bytes)
    }

    // SAFETY: see `alloc`.
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.0.dealloc(at, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::System;

    /// Return whether the kernel reports the advice for the map that contains an address.
    fn is_advised(at: *mut u8) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let word = line.split(' ').next().unwrap_or_default();
            if let Some((from, to)) = word.split_once('-') {
                let number = |text| usize::from_str_radix(text, 16).unwrap();
                inside = (number(from)..number(to)).contains(&at.addr());
            } else if inside && word == "VmFlags:" {
                return line.split(' ').any(|flag| flag == "hg");
            }
        }
        panic!("no map has {at:?}");
    }

    #[test]
    fn only_what_is_large_is_advised_and_only_once_that_is_wanted() {
        if !std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap() {
            // The kernel was built without huge pages and ignores the advice.
            return;
        }
        let heap = Heap(System);
        let large = Layout::from_size_align(64 << 20, 64).unwrap();
        // SAFETY: layouts are not empty, and each allocation is freed once, with its current layout.
        unsafe {
            let before = heap.alloc(large);
            assert!(!is_advised(before.add(32 << 20)));
            heap.dealloc(before, large);
            want_huge_pages();
            let after = heap.alloc_zeroed(large);
            assert!(is_advised(after.add(32 << 20)) && *after.add(63 << 20) == 0);
            *after.add(1) = 7;
            let grown = heap.realloc(after, large, 96 << 20);
            assert!(is_advised(grown.add(80 << 20)) && *grown.add(1) == 7);
            heap.dealloc(grown, Layout::from_size_align(96 << 20, 64).unwrap());
            let small = Layout::from_size_align(1 << 20, 64).unwrap();
            let little = heap.alloc(small);
            assert!(!is_advised(little));
            heap.dealloc(little, small);
        }
    }
}

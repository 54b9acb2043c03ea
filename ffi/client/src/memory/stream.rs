//! Copies of what nobody reads soon: past the processor's caches, where the instruction set has stores for that.
//!
//! Stores past the cache do not read a line from memory before they write it, and leave the engine's own lines in the caches. Where both
//! sides lie in memory they are 1.6 to 2 times as fast as memcpy, where all of it fits into the second level cache a third as fast
//! (`kvtide bench blocks`): they are for pages that go to host memory, and for blocks, of which a call copies many.

/// Pieces shorter than this are left to memcpy: what is gained there is less than what the fence costs.
const STREAMED_MIN: usize = 4 << 10;

/// Copies `bytes` from `from` to `to`. When it returns, every store before it in program order is seen by whoever sees a later one.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`]: both are valid for so many bytes and do not overlap.
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes >= STREAMED_MIN {
        // SAFETY: the caller's.
        return unsafe { x86::copy(from, to, bytes) };
    }
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
}

/// With the stores of SSE2, which every x86-64 has: wider ones were no faster, the memory is what is waited for.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128};

    const LINE: usize = 64;
    /// Prefetchers of the hardware end at a page's: several pages side by side keep more of them at work.
    const PAGE: usize = 4 << 10;
    const SIDE_BY_SIDE: usize = 4;
    /// How far ahead of the loads lines are asked for.
    const AHEAD: usize = 512;

    /// # Safety
    /// As [`super::copy`].
    pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
        let head = to.align_offset(LINE).min(bytes);
        let body = (bytes - head) / LINE * LINE;
        // SAFETY: head, body and tail are the caller's bytes, each once; `to + head` is at a line's start.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, head);
            lines(from.add(head), to.add(head), body);
            let done = head + body;
            std::ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes - done);
        }
        // Such stores are ordered by nothing else: who hears that the copy has ended must see them.
        // SAFETY: every x86-64 has it.
        unsafe { _mm_sfence() };
    }

    /// # Safety
    /// As [`super::copy`]; `to` is at a line's start and `bytes` whole lines.
    unsafe fn lines(from: *const u8, to: *mut u8, bytes: usize) {
        let together = bytes / (SIDE_BY_SIDE * PAGE) * (SIDE_BY_SIDE * PAGE);
        for start in (0..together).step_by(SIDE_BY_SIDE * PAGE) {
            for offset in (0..PAGE).step_by(LINE) {
                for page in 0..SIDE_BY_SIDE {
                    let at = start + page * PAGE + offset;
                    // SAFETY: below `bytes`.
                    unsafe { line(from.add(at), to.add(at)) };
                }
            }
        }
        for at in (together..bytes).step_by(LINE) {
            // SAFETY: below `bytes`.
            unsafe { line(from.add(at), to.add(at)) };
        }
    }

    /// # Safety
    /// Both have a line's bytes; `to` is at its start.
    #[inline(always)]
    unsafe fn line(from: *const u8, to: *mut u8) {
        const WORD: usize = size_of::<std::arch::x86_64::__m128i>();
        // SAFETY: every x86-64 has it, and it may be told any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD).cast()) };
        for at in (0..LINE).step_by(WORD) {
            // SAFETY: the caller's.
            unsafe { _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(from.add(at).cast())) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any length at any place: what is asked for is copied, and nothing beside it.
        #[test]
        fn it_copies_what_memcpy_does(
            bytes in prop_oneof![0usize..300, STREAMED_MIN - 70..STREAMED_MIN + 70, 0usize..60_000],
            from in 0usize..70,
            to in 0usize..70,
        ) {
            let source: Vec<u8> = (0..from + bytes).map(|i| (i * 31 + i / 251) as u8).collect();
            let mut target = vec![0xA5u8; to + bytes + 70];
            let mut expected = target.clone();
            expected[to..to + bytes].copy_from_slice(&source[from..]);
            // SAFETY: both have so many bytes from there on, in two allocations.
            unsafe { copy(source.as_ptr().add(from), target.as_mut_ptr().add(to), bytes) };
            prop_assert_eq!(target, expected);
        }
    }
}

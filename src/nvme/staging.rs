//! Staging buffer of a disk: aligned memory in chunks, for pages that are not whole sectors.

use super::engine::Piece;
use super::memory::Aligned;
use super::plan::{Run, Span};
use std::io;

/// Bytes of a chunk: many small pages fit into one request, and copying them is short compared to the request.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

/// The staging chunks.
#[derive(Debug)]
pub(super) struct Staging {
    memory: Aligned,
    free: Vec<u16>,
    /// The registered buffer that contains all chunks.
    pub buffer: Option<u16>,
}

impl Staging {
    /// Allocate as many chunks as fit into `bytes`, at least one.
    pub fn new(bytes: u64) -> io::Result<Staging> {
        let chunks = (bytes / CHUNK_BYTES as u64).clamp(1, u64::from(u16::MAX)) as u16;
        let memory = Aligned::new(usize::from(chunks) * CHUNK_BYTES)?;
        Ok(Staging { memory, free: (0..chunks).collect(), buffer: None })
    }

    /// Return the whole memory range.
    pub fn piece(&self) -> Piece {
        Piece::new(self.memory.as_ptr(), self.memory.len())
    }

    /// Leak the memory, because a device may still use it.
    pub fn leak(&mut self) {
        self.memory.leak();
    }

    /// Take a free chunk.
    pub fn take(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Return a chunk that the device no longer uses.
    pub fn give(&mut self, chunk: u16) {
        self.free.push(chunk);
    }

    /// Return the address of a chunk.
    pub fn at(&self, chunk: u16) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(usize::from(chunk) * CHUNK_BYTES)
    }

    /// Zero the part of a chunk that a run will use.
    pub fn clear(&mut self, chunk: u16, run: &Run) {
        assert!(run.bytes as usize <= CHUNK_BYTES, "the staged run has {} bytes, more than a chunk", run.bytes);
        // SAFETY: the range is inside a chunk that is taken: neither the device nor other code uses it.
        unsafe { std::ptr::write_bytes(self.at(chunk), 0, run.bytes as usize) }
    }

    /// Copy the run's part of the pages from host memory into the chunk.
    ///
    /// # Safety
    /// The spans' memory must be valid and must not be written meanwhile.
    pub unsafe fn load(&mut self, chunk: u16, run: &Run, spans: &[Span]) {
        self.copy(chunk, run, spans, |page, staged, bytes| {
            // SAFETY: `copy` checked the range of the chunk, which was taken and is not the page; the caller promises the page.
            unsafe { std::ptr::copy_nonoverlapping(page, staged, bytes) }
        });
    }

    /// Copy the run's part of the pages from the chunk into host memory.
    ///
    /// # Safety
    /// The spans' memory must be valid and must not be used meanwhile.
    pub unsafe fn store(&mut self, chunk: u16, run: &Run, spans: &[Span]) {
        self.copy(chunk, run, spans, |page, staged, bytes| {
            // SAFETY: as in `load`.
            unsafe { std::ptr::copy_nonoverlapping(staged, page, bytes) }
        });
    }

    /// Call `move_bytes` for every part of a page in the run, with its address, its address in the chunk, and its size.
    fn copy(&mut self, chunk: u16, run: &Run, spans: &[Span], move_bytes: impl Fn(*mut u8, *mut u8, usize)) {
        assert!(run.bytes as usize <= CHUNK_BYTES, "the staged run has {} bytes, more than a chunk", run.bytes);
        for span in &spans[run.first..run.first + run.pages] {
            let from = span.at.max(run.at);
            let to = (span.at + span.bytes).min(run.at + run.bytes);
            assert!(from < to, "the page is outside the run");
            let page = (span.address as *mut u8).wrapping_add((from - span.at) as usize);
            let staged = self.at(chunk).wrapping_add((from - run.at) as usize);
            move_bytes(page, staged, (to - from) as usize);
        }
    }
}

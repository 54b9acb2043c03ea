//! Aligned memory of a disk's own, in chunks, for pages that are no whole sectors.

use super::engine::Piece;
use super::memory::Aligned;
use super::plan::{Run, Span};
use std::io;

/// Bytes of a chunk: many small pages in one request, and a copy that is short beside it.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

/// The chunks.
#[derive(Debug)]
pub(super) struct Staging {
    memory: Aligned,
    free: Vec<u16>,
    /// The registered buffer that holds all chunks.
    pub buffer: Option<u16>,
}

impl Staging {
    /// As many chunks as `bytes` has room for, and at least one.
    pub fn new(bytes: u64) -> io::Result<Staging> {
        let chunks = (bytes / CHUNK_BYTES as u64).clamp(1, u64::from(u16::MAX)) as u16;
        let memory = Aligned::new(usize::from(chunks) * CHUNK_BYTES)?;
        Ok(Staging { memory, free: (0..chunks).collect(), buffer: None })
    }

    /// All of it.
    pub fn piece(&self) -> Piece {
        Piece::new(self.memory.as_ptr(), self.memory.len())
    }

    /// Leaves the memory to a device that may still use it.
    pub fn leak(&mut self) {
        self.memory.leak();
    }

    /// A free chunk.
    pub fn take(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Gives a chunk back that the device has let go of.
    pub fn give(&mut self, chunk: u16) {
        self.free.push(chunk);
    }

    /// Where a chunk begins.
    pub fn at(&self, chunk: u16) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(usize::from(chunk) * CHUNK_BYTES)
    }

    /// Zeroes what a run will use of a chunk.
    pub fn clear(&mut self, chunk: u16, run: &Run) {
        assert!(run.bytes as usize <= CHUNK_BYTES, "a staged run of {} bytes", run.bytes);
        // SAFETY: the range lies in the chunk, which was taken: neither the device nor anybody else uses it.
        unsafe { std::ptr::write_bytes(self.at(chunk), 0, run.bytes as usize) }
    }

    /// Copies what `run` has of the pages from host memory into the chunk.
    ///
    /// # Safety
    /// The spans' memory is valid, and nobody writes it meanwhile.
    pub unsafe fn load(&mut self, chunk: u16, run: &Run, spans: &[Span]) {
        self.copy(chunk, run, spans, |page, staged, bytes| {
            // SAFETY: `copy` checked the range of the chunk, which was taken and is not the page; the caller promises the page.
            unsafe { std::ptr::copy_nonoverlapping(page, staged, bytes) }
        });
    }

    /// Copies what `run` has of the pages from the chunk into host memory.
    ///
    /// # Safety
    /// The spans' memory is valid, and nobody uses it meanwhile.
    pub unsafe fn store(&mut self, chunk: u16, run: &Run, spans: &[Span]) {
        self.copy(chunk, run, spans, |page, staged, bytes| {
            // SAFETY: as in `load`.
            unsafe { std::ptr::copy_nonoverlapping(staged, page, bytes) }
        });
    }

    /// Calls `move_bytes` with every piece of a page that lies in the run, its place in the chunk, and its bytes.
    fn copy(&mut self, chunk: u16, run: &Run, spans: &[Span], move_bytes: impl Fn(*mut u8, *mut u8, usize)) {
        assert!(run.bytes as usize <= CHUNK_BYTES, "a staged run of {} bytes", run.bytes);
        for span in &spans[run.first..run.first + run.pages] {
            let from = span.at.max(run.at);
            let to = (span.at + span.bytes).min(run.at + run.bytes);
            assert!(from < to, "a page beyond its run");
            let page = (span.address as *mut u8).wrapping_add((from - span.at) as usize);
            let staged = self.at(chunk).wrapping_add((from - run.at) as usize);
            move_bytes(page, staged, (to - from) as usize);
        }
    }
}

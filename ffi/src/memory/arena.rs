//! Tier 0 of a CPU engine: one anonymous map, size class after size class.

use crate::{Error, Result, agent::protocol::Geometry, process};
use kvtide_wire::status::Status;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::{ffi::c_void, ptr::NonNull};

/// A class starts on a page of this size, so that large frames can have huge pages (x86-64, arm64 with 4 KiB granules).
const HUGE: usize = 2 << 20;
/// A class smaller than that starts on a small page.
const SMALL: usize = 4096;

/// One size class in the map.
#[derive(Clone, Copy, Debug)]
struct Class {
    offset: usize,
    first_frame: u32,
    frames: u32,
    stride: usize,
    page_bytes: usize,
}

/// The frames of tier 0. Not inherited by forked children, not in core dumps.
#[derive(Debug)]
pub struct Tier0 {
    start: NonNull<u8>,
    bytes: usize,
    classes: Vec<Class>,
    owner: u32,
}

// SAFETY: the map is plain memory that stays where it is; who may touch which frame when is the page protocol's matter, and
// every access goes through a raw pointer whose user states it.
unsafe impl Send for Tier0 {}
// SAFETY: as above.
unsafe impl Sync for Tier0 {}

fn system(doing: String, errno: rustix::io::Errno) -> Error {
    Error::System { doing, status: Status::System, source: errno.into() }
}

impl Tier0 {
    /// Maps and prefaults frames for a geometry.
    ///
    /// # Errors
    /// [`Error::System`]: there is no room for so many bytes.
    pub fn new(geometry: &Geometry) -> Result<Tier0> {
        let mut classes = Vec::with_capacity(geometry.classes());
        let mut offset = 0usize;
        let mut first_frame = 0;
        for (page_bytes, stride, frames) in (0..geometry.classes()).filter_map(|class| geometry.class(class)) {
            let (page_bytes, stride) = (page_bytes as usize, stride as usize);
            let bytes = stride.saturating_mul(frames as usize);
            offset = offset.next_multiple_of(if bytes >= HUGE { HUGE } else { SMALL });
            classes.push(Class { offset, first_frame, frames, stride, page_bytes });
            first_frame += frames;
            offset = offset.saturating_add(bytes);
        }
        let bytes = offset.max(1).checked_next_multiple_of(HUGE).unwrap_or(usize::MAX);
        let doing = || format!("map {bytes} bytes of tier 0");
        // SAFETY: a fresh private mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes.saturating_add(HUGE),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|e| system(doing(), e))?;
        let start = Self::trim(start, bytes);
        let tier0 = Tier0 {
            start: NonNull::new(start.cast()).ok_or_else(|| system(doing(), rustix::io::Errno::NOMEM))?,
            bytes,
            classes,
            owner: process::id(),
        };
        tier0.advise(Advice::LinuxHugepage).ok(); // a kernel without huge pages is slower, nothing else
        tier0.advise(Advice::LinuxDontFork).map_err(|e| system("keep tier 0 from children".into(), e))?;
        tier0.advise(Advice::LinuxDontDump).map_err(|e| system("keep tier 0 from core dumps".into(), e))?;
        match tier0.advise(Advice::LinuxPopulateWrite) {
            // Linux before 5.14 cannot be asked; the first copies pay instead.
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(tier0),
            Err(e) => Err(system(format!("prefault {bytes} bytes of tier 0"), e)),
        }
    }

    /// Cuts a map of `bytes + HUGE` down to `bytes` that start on a huge page.
    fn trim(start: *mut c_void, bytes: usize) -> *mut c_void {
        let skip = start.addr().next_multiple_of(HUGE) - start.addr();
        let begin = start.wrapping_byte_add(skip);
        for (at, len) in [(start, skip), (begin.wrapping_byte_add(bytes), HUGE - skip)] {
            if len > 0 {
                // SAFETY: the range is part of the mapping just made, nobody else knows it, and nothing in it is used.
                // A failure leaves address space mapped that is never touched.
                let _ = unsafe { rustix::mm::munmap(at, len) };
            }
        }
        begin
    }

    fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the range is exactly our mapping; none of the advices used changes its contents.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, advice) }
    }

    /// Its first byte.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Byte offset, first frame and frames of a class.
    #[must_use]
    pub fn class(&self, class: usize) -> Option<(usize, u32, u32)> {
        self.classes.get(class).map(|c| (c.offset, c.first_frame, c.frames))
    }

    /// Where a frame is, and the bytes of its page.
    #[must_use]
    pub fn frame(&self, frame: u32) -> Option<(*mut u8, usize)> {
        let class = self.classes.iter().rfind(|c| c.first_frame <= frame)?;
        let within = frame - class.first_frame;
        let offset = class.offset + within as usize * class.stride;
        (within < class.frames).then(|| (self.start.as_ptr().wrapping_add(offset), class.page_bytes))
    }
}

impl Drop for Tier0 {
    fn drop(&mut self) {
        if self.owner != process::id() {
            return; // the child never had the map; something else may stand there
        }
        // SAFETY: our own mapping, and the last handle to it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::geometry::Bounds;
    use kvtide_wire::geometry::PlaneSpec;

    #[test]
    fn frames_are_aligned_apart_and_inside() {
        let plane = |page_bytes| PlaneSpec { page_bytes, ..PlaneSpec::default() };
        let bounds = Bounds {
            page_tokens: 16,
            blocks_max: 8,
            seqs_max: 1,
            seq_blocks_max: 8,
            lanes: 1,
            jobs_max: 4,
            log_entries: 16,
            pins_max: 1,
        };
        let planes = [plane(1000), plane(1 << 20), plane(1000)];
        let geometry = Geometry::new(&planes, &[7, 3], bounds).expect("geometry");
        let tier0 = Tier0::new(&geometry).expect("map");
        let mut ranges = Vec::new();
        for frame in 0..10 {
            let (at, bytes) = tier0.frame(frame).expect("a frame");
            assert_eq!(bytes, if frame < 7 { 1000 } else { 1 << 20 });
            assert!(at.addr().is_multiple_of(64));
            // SAFETY: the frame is inside the map, and nobody else uses it.
            unsafe { at.write_bytes(frame as u8, bytes) };
            ranges.push(at.addr()..at.addr() + bytes);
        }
        assert!(tier0.frame(10).is_none());
        ranges.sort_by_key(|r| r.start);
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
        let end = tier0.start().addr() + tier0.bytes();
        assert!(ranges.iter().all(|r| r.start >= tier0.start().addr() && r.end <= end));
    }
}

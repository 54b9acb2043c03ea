//! Tier 0 of a CPU engine: one anonymous mapping, excluded from forked children and core dumps.

use super::frames::ClassRoom;
use crate::{Error, Result, process};
use kvtide_wire::status::Status;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::{ffi::c_void, ptr::NonNull};

/// Alignment of a class of at least this size, so that large frames can use huge pages (x86-64, arm64 with 4 KiB granules).
const HUGE: u64 = 2 << 20;
/// Alignment of a smaller class.
const SMALL: u64 = 4096;

/// The mapping.
#[derive(Debug)]
pub(super) struct HostMap {
    start: NonNull<u8>,
    bytes: usize,
    owner: u32,
}

// SAFETY: the mapping is plain memory at a fixed address. The page protocol defines which thread may access which frame when, and
// every access goes through a raw pointer; its user states why the access is allowed.
unsafe impl Send for HostMap {}
// SAFETY: as above.
unsafe impl Sync for HostMap {}

fn system(doing: String, errno: rustix::io::Errno) -> Error {
    Error::System { doing, status: Status::System, source: errno.into() }
}

/// Return the offset of a class's room after classes that end at `end`.
pub(super) fn place(end: u64, room: &ClassRoom) -> u64 {
    end.next_multiple_of(if room.bytes() >= HUGE { HUGE } else { SMALL })
}

impl HostMap {
    /// Reserve address space for `bytes` bytes, without memory.
    pub fn new(bytes: u64) -> Result<HostMap> {
        let doing = || format!("map {bytes} bytes of tier 0");
        let none = || system(doing(), rustix::io::Errno::NOMEM);
        let bytes =
            bytes.max(1).checked_next_multiple_of(HUGE).and_then(|b| usize::try_from(b).ok()).ok_or_else(none)?;
        let with_room = bytes.checked_add(HUGE as usize).ok_or_else(none)?;
        // SAFETY: a fresh private mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                with_room,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|e| system(doing(), e))?;
        let start = NonNull::new(Self::trim(start, bytes).cast()).ok_or_else(none)?;
        let map = HostMap { start, bytes, owner: process::id() };
        let all = (0, bytes);
        map.advise(all, Advice::LinuxHugepage).ok(); // without huge pages tier 0 is only slower
        map.advise(all, Advice::LinuxDontFork).map_err(|e| system("exclude tier 0 from forked children".into(), e))?;
        map.advise(all, Advice::LinuxDontDump).map_err(|e| system("exclude tier 0 from core dumps".into(), e))?;
        Ok(map)
    }

    /// Trim a mapping of `bytes + HUGE` to `bytes` that start on a huge page.
    fn trim(start: *mut c_void, bytes: usize) -> *mut c_void {
        let huge = HUGE as usize;
        let skip = start.addr().next_multiple_of(huge) - start.addr();
        let begin = start.wrapping_byte_add(skip);
        for (at, len) in [(start, skip), (begin.wrapping_byte_add(bytes), huge - skip)] {
            if len > 0 {
                // SAFETY: the range is part of the mapping just made, no other code knows it, and nothing in it is used. After a
                // failure the address space stays mapped and is never touched.
                let _ = unsafe { rustix::mm::munmap(at, len) };
            }
        }
        begin
    }

    /// Advise the system about the bytes from `range.0` to `range.1`.
    fn advise(&self, range: (usize, usize), advice: Advice) -> rustix::io::Result<()> {
        let (from, to) = range;
        let at = self.start.as_ptr().wrapping_add(from);
        // SAFETY: the range lies in our mapping. Only `give_back` uses an advice that changes contents, on frames that are not in
        // use.
        unsafe { rustix::mm::madvise(at.cast(), to.min(self.bytes).saturating_sub(from), advice) }
    }

    /// First byte.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Prefault the frames of a class from `from` to `to`.
    pub fn take(&self, room: &ClassRoom, from: u32, to: u32) -> Result<()> {
        let begin = (room.offset + room.bytes_of(from)) & !(SMALL - 1);
        let end = (room.offset + room.bytes_of(to)).next_multiple_of(SMALL);
        match self.advise((begin as usize, end as usize), Advice::LinuxPopulateWrite) {
            // Linux before 5.14 does not support this; the first copies then fault the pages in.
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
            Err(e) => Err(system(format!("prefault {} bytes of tier 0", end - begin), e)),
        }
    }

    /// Return the memory of a class's frames from `from` to `to` to the system. Their contents are lost.
    pub fn give_back(&self, room: &ClassRoom, from: u32, to: u32) -> Result<()> {
        // The start is rounded up, because a frame that stays may share the page. The end is rounded up only after the last frame,
        // where nothing follows in the class's last page.
        let begin = (room.offset + room.bytes_of(from)).next_multiple_of(SMALL);
        let end = room.offset + room.bytes_of(to);
        let end = if to == room.frames_max { end.next_multiple_of(SMALL) } else { end & !(SMALL - 1) };
        if begin >= end {
            return Ok(());
        }
        self.advise((begin as usize, end as usize), Advice::LinuxDontNeed)
            .map_err(|e| system(format!("free {} bytes of tier 0", end - begin), e))
    }
}

impl Drop for HostMap {
    fn drop(&mut self) {
        if self.owner != process::id() {
            return; // a forked child never had the mapping; something else may be mapped there
        }
        // SAFETY: our own mapping, and the last handle to it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

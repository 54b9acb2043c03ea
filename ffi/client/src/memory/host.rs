//! Tier 0 of a CPU engine: one anonymous map. Not inherited by forked children, not in core dumps.

use super::frames::ClassRoom;
use crate::{Error, Result, process};
use kvtide_wire::status::Status;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::{ffi::c_void, ptr::NonNull};

/// A class starts on a page of this size, so that large frames can have huge pages (x86-64, arm64 with 4 KiB granules).
const HUGE: u64 = 2 << 20;
/// A class smaller than that starts on a small page.
const SMALL: u64 = 4096;

/// The map.
#[derive(Debug)]
pub(super) struct HostMap {
    start: NonNull<u8>,
    bytes: usize,
    owner: u32,
}

// SAFETY: the map is plain memory that stays where it is; who may touch which frame when is the page protocol's matter, and
// every access goes through a raw pointer whose user states it.
unsafe impl Send for HostMap {}
// SAFETY: as above.
unsafe impl Sync for HostMap {}

fn system(doing: String, errno: rustix::io::Errno) -> Error {
    Error::System { doing, status: Status::System, source: errno.into() }
}

/// Where a class's room begins if what is placed already ends at `end`.
pub(super) fn place(end: u64, room: &ClassRoom) -> u64 {
    end.next_multiple_of(if room.bytes() >= HUGE { HUGE } else { SMALL })
}

impl HostMap {
    /// Reserves room for `bytes`; nothing has memory behind it yet.
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
        map.advise(all, Advice::LinuxHugepage).ok(); // a kernel without huge pages is slower, nothing else
        map.advise(all, Advice::LinuxDontFork).map_err(|e| system("keep tier 0 from children".into(), e))?;
        map.advise(all, Advice::LinuxDontDump).map_err(|e| system("keep tier 0 from core dumps".into(), e))?;
        Ok(map)
    }

    /// Cuts a map of `bytes + HUGE` down to `bytes` that start on a huge page.
    fn trim(start: *mut c_void, bytes: usize) -> *mut c_void {
        let huge = HUGE as usize;
        let skip = start.addr().next_multiple_of(huge) - start.addr();
        let begin = start.wrapping_byte_add(skip);
        for (at, len) in [(start, skip), (begin.wrapping_byte_add(bytes), huge - skip)] {
            if len > 0 {
                // SAFETY: the range is part of the mapping just made, nobody else knows it, and nothing in it is used.
                // A failure leaves address space mapped that is never touched.
                let _ = unsafe { rustix::mm::munmap(at, len) };
            }
        }
        begin
    }

    /// Advises the system about the bytes from `range.0` to `range.1`.
    fn advise(&self, range: (usize, usize), advice: Advice) -> rustix::io::Result<()> {
        let (from, to) = range;
        let at = self.start.as_ptr().wrapping_add(from);
        // SAFETY: the range lies in our mapping. Only `give_back` uses an advice that changes contents, of frames that nobody uses.
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

    /// Prefaults the frames of a class from `from` to `to`.
    pub fn take(&self, room: &ClassRoom, from: u32, to: u32) -> Result<()> {
        let begin = (room.offset + room.bytes_of(from)) & !(SMALL - 1);
        let end = (room.offset + room.bytes_of(to)).next_multiple_of(SMALL);
        match self.advise((begin as usize, end as usize), Advice::LinuxPopulateWrite) {
            // Linux before 5.14 cannot be asked; the first copies pay instead.
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
            Err(e) => Err(system(format!("prefault {} bytes of tier 0", end - begin), e)),
        }
    }

    /// Gives the memory behind the frames of a class from `from` to `to` back to the system; their bytes are gone.
    pub fn give_back(&self, room: &ClassRoom, from: u32, to: u32) -> Result<()> {
        // Rounded inwards below, where a frame that stays may share the page; above, nothing follows in a class's last page.
        let begin = (room.offset + room.bytes_of(from)).next_multiple_of(SMALL);
        let end = room.offset + room.bytes_of(to);
        let end = if to == room.frames_max { end.next_multiple_of(SMALL) } else { end & !(SMALL - 1) };
        if begin >= end {
            return Ok(());
        }
        self.advise((begin as usize, end as usize), Advice::LinuxDontNeed)
            .map_err(|e| system(format!("give back {} bytes of tier 0", end - begin), e))
    }
}

impl Drop for HostMap {
    fn drop(&mut self) {
        if self.owner != process::id() {
            return; // the child never had the map; something else may stand there
        }
        // SAFETY: our own mapping, and the last handle to it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

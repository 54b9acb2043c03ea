//! Limits of the machine: memcpy between two buffers, and the disk without kvtide.

use super::super::BenchError;
use super::super::engine::PAGE_BYTES;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, pread, pwrite};
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

/// Bytes of each memcpy buffer: larger than any cache.
const BUFFER_BYTES: usize = 128 << 20;
/// Bytes of the file.
const FILE_BYTES: u64 = 256 << 20;
/// Bytes of a request: large requests are fastest on most drives.
const REQUEST_BYTES: usize = 1 << 20;
/// Address alignment for direct I/O.
const ALIGN: usize = 4096;
/// Requests in flight.
const THREADS: u64 = 4;

/// Bytes a second.
pub(super) struct Disk {
    pub(super) read: f64,
    pub(super) write: f64,
    pub(super) direct: bool,
}

/// Return the memcpy rate of pages in bytes a second.
pub(super) fn memcpy() -> f64 {
    let (from, mut to) = (vec![1u8; BUFFER_BYTES], vec![2u8; BUFFER_BYTES]);
    let began = Instant::now();
    for (to, from) in to.chunks_mut(PAGE_BYTES as usize).zip(from.chunks(PAGE_BYTES as usize)) {
        to.copy_from_slice(black_box(from));
    }
    black_box(&to);
    BUFFER_BYTES as f64 / began.elapsed().as_secs_f64()
}

/// Write a file twice and read it. The second writes and the reads are timed. The file has no name, so it ends with its descriptor.
pub(super) fn disk(dir: &Path) -> Result<Disk, BenchError> {
    let failed = |tried: &str| {
        let tried = format!("{tried} in {}", dir.display());
        move |errno: Errno| BenchError::System { tried, source: errno.into() }
    };
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR);
    let (file, direct) = match open(flags | OFlags::DIRECT) {
        Err(Errno::INVAL | Errno::OPNOTSUPP) => (open(flags).map_err(failed("create a file"))?, false),
        other => (other.map_err(failed("create a file"))?, true),
    };
    all(&file, true).map_err(failed("write a file"))?;
    let write = all(&file, true).map_err(failed("write a file"))?;
    let read = all(&file, false).map_err(failed("read a file"))?;
    Ok(Disk { read, write, direct })
}

/// Read or write the whole file. Return the bytes a second.
fn all(file: &OwnedFd, write: bool) -> Result<f64, Errno> {
    let began = Instant::now();
    let part = |thread: u64| -> Result<(), Errno> {
        let mut memory = vec![1u8; REQUEST_BYTES + ALIGN];
        let skip = memory.as_ptr().align_offset(ALIGN);
        let buffer = &mut memory[skip..skip + REQUEST_BYTES];
        let each = FILE_BYTES / THREADS;
        for at in (thread * each..(thread + 1) * each).step_by(REQUEST_BYTES) {
            let count = if write { pwrite(file, &*buffer, at)? } else { pread(file, &mut *buffer, at)? };
            if count != REQUEST_BYTES {
                return Err(Errno::IO);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || part(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err(Errno::IO)))
    })?;
    Ok(FILE_BYTES as f64 / began.elapsed().as_secs_f64())
}

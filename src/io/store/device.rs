//! Block devices without a file system. They hold what a file would, from their begin; what they hold of others is never touched.

use super::super::error::DiskError;
use super::{LOCK, LOCK_AGAIN};
use kvtide_tiering::format::Superblock;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, ioctl, opcode};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

/// What must be zero at both ends of a device for it to be nobody's: file systems, partition tables, RAID and LVM say who they are
/// there (`wipefs` knows no signature elsewhere).
const ENDS_BYTES: u64 = 1 << 20;
/// Permissions that others must not have. Group and owner are the system's (`root:disk`), who may read any device.
const OTHERS: u32 = 0o007;
/// `linux/fs.h`.
const BLKROGET: rustix::ioctl::Opcode = opcode::none(0x12, 94);
const BLKGETSIZE64: rustix::ioctl::Opcode = opcode::read::<usize>(0x12, 114);
const BLKDISCARD: rustix::ioctl::Opcode = opcode::none(0x12, 119);

/// Opens it for us alone: not while it is mounted, part of something, or another daemon's.
pub(super) fn open(path: &Path) -> Result<File, DiskError> {
    let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    // Without O_EXCL, to look at it: O_EXCL on what is no device means something else.
    let looked = match rustix::fs::open(path, flags | OFlags::RDONLY, Mode::empty()) {
        // `/dev/disk/by-id/...` are links, which the system makes.
        Err(Errno::LOOP) => rustix::fs::open(path, flags.difference(OFlags::NOFOLLOW) | OFlags::RDONLY, Mode::empty()),
        other => other,
    };
    let looked = looked.map_err(|e| DiskError::os("open the device", path, e))?;
    let stat = rustix::fs::fstat(&looked).map_err(|e| DiskError::os("look at", path, e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return Err(DiskError::Kind { path: path.into(), expected: "block device" });
    }
    if stat.st_mode & OTHERS != 0 {
        return Err(DiskError::Mode { path: path.into(), mode: stat.st_mode & 0o7777 });
    }
    // SAFETY: BLKROGET writes an int.
    let read_only: i32 = unsafe { ioctl(&looked, Getter::<BLKROGET, i32>::new()) }
        .map_err(|e| DiskError::os("ask whether it is read-only:", path, e))?;
    if read_only != 0 {
        return Err(DiskError::ReadOnly { path: path.into() });
    }
    // The same device, whatever happens to its name.
    let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&looked));
    let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
    let until = Instant::now() + LOCK;
    loop {
        match rustix::fs::open(&*again, flags, Mode::empty()) {
            Ok(file) => return Ok(File::from(file)),
            Err(Errno::BUSY) if Instant::now() < until => {
                // PACE: bounded by LOCK.
                std::thread::sleep(LOCK_AGAIN);
            }
            Err(Errno::BUSY) => return Err(DiskError::InUse { path: path.into() }),
            Err(errno) => return Err(DiskError::os("open for us alone the device", path, errno)),
        }
    }
}

/// Its bytes.
pub(super) fn bytes(file: &File, path: &Path) -> Result<u64, DiskError> {
    // SAFETY: BLKGETSIZE64 writes a u64, whatever its name says.
    let bytes = unsafe { ioctl(file, Getter::<BLKGETSIZE64, u64>::new()) };
    match bytes.map_err(|e| DiskError::os("ask for the size of", path, e))? {
        // Its name is there, and nothing behind it.
        0 => Err(DiskError::os("find anything on", path, Errno::NXIO)),
        bytes => Ok(bytes),
    }
}

/// The largest store that fits into so many bytes.
pub(super) fn fit(
    bytes: u64,
    region_bytes: u64,
    store: impl Fn(u64) -> Result<Superblock, DiskError>,
) -> Result<Superblock, DiskError> {
    let mut capacity = bytes;
    loop {
        let block = store(capacity)?;
        match block.file_bytes().checked_sub(bytes) {
            None | Some(0) => return Ok(block),
            // At least one region less; fewer than none is the layout's error.
            Some(over) => capacity = (capacity / region_bytes * region_bytes).saturating_sub(over.min(region_bytes)),
        }
    }
}

/// Whether both its ends are zero.
pub(super) fn is_blank(file: &File, path: &Path, bytes: u64) -> Result<bool, DiskError> {
    let mut end = vec![0; ENDS_BYTES.min(bytes) as usize];
    for at in [0, bytes - end.len() as u64] {
        file.read_exact_at(&mut end, at).map_err(|e| DiskError::os("look at the ends of", path, e))?;
        if end.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Tells the device that nobody needs these bytes any more. They read as anything afterwards.
pub(in crate::io) fn discard(file: &File, offset: u64, bytes: u64) -> Result<(), Errno> {
    // SAFETY: BLKDISCARD reads two u64: where, and how many.
    unsafe { ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new([offset, bytes])) }
}

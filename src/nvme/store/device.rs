//! Raw block devices. They hold the same bytes as a store file, from the start of the device. Devices with other data are never
//! changed.

use super::super::error::DiskError;
use super::{LOCK, LOCK_AGAIN};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, ioctl, opcode};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

/// Bytes at each end of a device that must be zero for it to count as unused: file systems, partition tables, RAID and LVM have
/// their signatures there (`wipefs` knows none elsewhere).
const ENDS_BYTES: u64 = 1 << 20;
/// Permissions that other users must not have. Owner and group are set by the system (`root:disk`), which may read any device.
const OTHERS: u32 = 0o007;
/// `linux/fs.h`.
const BLKROGET: rustix::ioctl::Opcode = opcode::none(0x12, 94);
const BLKGETSIZE64: rustix::ioctl::Opcode = opcode::read::<usize>(0x12, 114);
const BLKDISCARD: rustix::ioctl::Opcode = opcode::none(0x12, 119);

/// Open the device exclusively: fails if it is mounted, part of another device, or used by another daemon.
pub(super) fn open(path: &Path) -> Result<File, DiskError> {
    let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    // Inspect it first without O_EXCL: on other file types O_EXCL has a different meaning.
    let looked = match rustix::fs::open(path, flags | OFlags::RDONLY, Mode::empty()) {
        // `/dev/disk/by-id/...` are links created by the system.
        Err(Errno::LOOP) => rustix::fs::open(path, flags.difference(OFlags::NOFOLLOW) | OFlags::RDONLY, Mode::empty()),
        other => other,
    };
    let looked = looked.map_err(|e| DiskError::os("open the device", path, e))?;
    let stat = rustix::fs::fstat(&looked).map_err(|e| DiskError::os("read the status of", path, e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return Err(DiskError::Kind { path: path.into(), expected: "block device" });
    }
    if stat.st_mode & OTHERS != 0 {
        return Err(DiskError::Mode { path: path.into(), mode: stat.st_mode & 0o7777 });
    }
    // SAFETY: BLKROGET writes an int.
    let read_only: i32 = unsafe { ioctl(&looked, Getter::<BLKROGET, i32>::new()) }
        .map_err(|e| DiskError::os("read the read-only flag of", path, e))?;
    if read_only != 0 {
        return Err(DiskError::ReadOnly { path: path.into() });
    }
    // Open the same device again, even if its name was changed meanwhile.
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
            Err(errno) => return Err(DiskError::os("exclusively open the device", path, errno)),
        }
    }
}

/// Return its size in bytes.
pub(super) fn bytes(file: &File, path: &Path) -> Result<u64, DiskError> {
    // SAFETY: BLKGETSIZE64 writes a u64, although its definition says size_t.
    let bytes = unsafe { ioctl(file, Getter::<BLKGETSIZE64, u64>::new()) };
    match bytes.map_err(|e| DiskError::os("read the size of", path, e))? {
        // The device node exists, but no device is present.
        0 => Err(DiskError::os("use the empty device", path, Errno::NXIO)),
        bytes => Ok(bytes),
    }
}

/// Return true if both ends are zero.
pub(super) fn is_blank(file: &File, path: &Path, bytes: u64) -> Result<bool, DiskError> {
    let mut end = vec![0; ENDS_BYTES.min(bytes) as usize];
    for at in [0, bytes - end.len() as u64] {
        file.read_exact_at(&mut end, at).map_err(|e| DiskError::os("read the ends of", path, e))?;
        if end.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Discard a range of the device. Its content is undefined afterwards.
pub(crate) fn discard(file: &File, offset: u64, bytes: u64) -> Result<(), Errno> {
    // SAFETY: BLKDISCARD reads two u64: offset and length.
    unsafe { ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new([offset, bytes])) }
}

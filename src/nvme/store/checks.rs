//! Checks of a disk's directory and file: owner, permissions, free space.

use super::super::error::DiskError;
use super::super::settings::{Reserve, Settings};
use kvtide_format::Superblock;
use rustix::fs::{Access, FileType, Mode, OFlags, Stat, StatVfsMountFlags};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Permissions that other users must not have.
const OTHERS: u32 = 0o077;

/// Action of errors about a directory that cannot be made.
const CREATE: &str = "create the directory";

/// Open the directory, creating it if missing, and check its owner and permissions.
pub(super) fn directory(dir: &Path) -> Result<File, DiskError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(refused(CREATE, dir, dir, error)),
    }
    opened(dir, true)
}

/// Check the directory as [`directory`] does, and change nothing. Return it, or its parent if it can be created there. `made`:
/// directories that will be made before.
pub(super) fn place(dir: &Path, made: &[&Path]) -> Result<File, DiskError> {
    if std::fs::symlink_metadata(dir).is_ok() {
        return opened(dir, false);
    }
    let failed = |errno: Errno| refused(CREATE, dir, dir, errno.into());
    let mut parent = dir.parent().unwrap_or(dir);
    if made.iter().any(|made| made.starts_with(parent)) {
        parent = parent.ancestors().find(|dir| dir.exists()).unwrap_or(parent);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = rustix::fs::open(parent, flags, Mode::empty()).map_err(failed)?;
    rustix::fs::access(parent, Access::WRITE_OK | Access::EXEC_OK).map_err(failed)?;
    Ok(File::from(file))
}

/// Open an existing directory and check it. One that is empty and not private is accepted; `makes_private`: its mode is changed.
fn opened(dir: &Path, makes_private: bool) -> Result<File, DiskError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(dir, flags, Mode::empty()) {
        Err(Errno::NOTDIR) => return Err(DiskError::Kind { path: dir.into(), expected: "directory" }),
        other => other.map_err(|e| DiskError::os("open the directory", dir, e))?,
    };
    let stat = rustix::fs::fstat(&opened).map_err(|e| DiskError::os("read the status of", dir, e))?;
    let open = ours(&stat, dir).is_err_and(|error| matches!(error, DiskError::Mode { .. }));
    let accepted = open && is_empty(&opened, dir)?;
    if accepted && makes_private {
        // Nothing is in it that others could have read or put there.
        rustix::fs::fchmod(&opened, Mode::RWXU).map_err(|e| DiskError::os("change the mode of", dir, e))?;
        tracing::info!("{}: the directory was empty; only its owner has access now (mode 0700)", dir.display());
    }
    let stat = rustix::fs::fstat(&opened).map_err(|e| DiskError::os("read the status of", dir, e))?;
    if makes_private || !accepted {
        ours(&stat, dir)?;
    }
    let vfs = rustix::fs::fstatvfs(&opened).map_err(|e| DiskError::os("read the file system status of", dir, e))?;
    if vfs.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(DiskError::ReadOnly { path: dir.into() });
    }
    Ok(File::from(opened))
}

fn is_empty(opened: &OwnedFd, dir: &Path) -> Result<bool, DiskError> {
    let failed = |e| DiskError::os("list", dir, e);
    for entry in rustix::fs::Dir::read_from(opened).map_err(failed)? {
        if !matches!(entry.map_err(failed)?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Check the owner and permissions of the file.
pub(super) fn file(file: &File, path: &Path) -> Result<(), DiskError> {
    let stat = rustix::fs::fstat(file).map_err(|e| DiskError::os("read the status of", path, e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(DiskError::Kind { path: path.into(), expected: "regular file" });
    }
    ours(&stat, path)
}

fn ours(stat: &Stat, path: &Path) -> Result<(), DiskError> {
    let (owner, me) = (stat.st_uid, rustix::process::geteuid().as_raw());
    if owner != me {
        return Err(DiskError::Owner { path: path.into(), owner, me });
    }
    if stat.st_mode & OTHERS != 0 {
        return Err(DiskError::Mode { path: path.into(), mode: stat.st_mode & 0o7777 });
    }
    Ok(())
}

/// Check that the whole file fits beside the space that must stay free; `file` is the file, or the directory if there is none.
pub(super) fn room(file: &File, settings: &Settings, wanted: &Superblock) -> Result<(), DiskError> {
    let dir = settings.place.path();
    let stat = rustix::fs::fstat(file).map_err(|e| DiskError::os("read the status of", dir, e))?;
    let vfs = rustix::fs::fstatvfs(file).map_err(|e| DiskError::os("read the file system status of", dir, e))?;
    let plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let has = if plain { u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512) } else { 0 };
    let free_bytes = vfs.f_bavail.saturating_mul(vfs.f_frsize);
    let floor_bytes = match settings.reserve_free {
        Reserve::Percent(percent) => vfs.f_blocks.saturating_mul(vfs.f_frsize) / 100 * u64::from(percent),
        Reserve::Bytes(bytes) => bytes,
    };
    let needed_bytes = wanted.file_bytes().saturating_sub(has);
    if needed_bytes > free_bytes.saturating_sub(floor_bytes) {
        let most = free_bytes.saturating_sub(floor_bytes).saturating_add(has);
        let most = Superblock::largest(wanted.store, most, wanted.region_bytes);
        return Err(DiskError::TooLarge {
            path: dir.into(),
            capacity_bytes: settings.capacity_bytes,
            needed_bytes,
            free_bytes,
            floor_bytes,
            most_bytes: most.map_or(0, |most| most.capacity_bytes()),
        });
    }
    Ok(())
}

/// Return the error of a call that a read-only file system may have refused.
pub(super) fn refused(tried: &'static str, path: &Path, dir: &Path, error: io::Error) -> DiskError {
    if error.raw_os_error() == Some(Errno::ROFS.raw_os_error()) {
        return DiskError::ReadOnly { path: dir.into() };
    }
    DiskError::os(tried, path, error)
}

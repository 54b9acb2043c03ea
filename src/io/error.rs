//! Why a disk cannot be used.

use super::code::KeyError;
use kvtide_tiering::format::SuperblockError;
use kvtide_tiering::log::LogError;
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// What was tried on a disk's directory or file, and why it failed. Nothing of a file that is not ours was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// Of another user.
    #[error("{} belongs to uid {owner}, and this daemon runs as uid {me}: give it a directory of its own", .path.display())]
    Owner {
        /// Directory or file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        me: u32,
    },
    /// Open to others, who could read prompts or change what is read.
    #[error("{} can be used by others (mode {mode:04o}): it will hold KV of prompts; chmod go= it", .path.display())]
    Mode {
        /// Directory or file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// No directory, or no plain file.
    #[error("{} is no {expected}", .path.display())]
    Kind {
        /// What stands there.
        path: PathBuf,
        /// What should.
        expected: &'static str,
    },
    /// Another process holds the lock.
    #[error(
        "{} is in use: another daemon serves it, one that was killed still has writes at the device, or (a device) it is mounted or \
         part of something else",
        .path.display()
    )]
    InUse {
        /// The file, or its directory.
        path: PathBuf,
    },
    /// Mounted read-only, or turned read-only by an error of its device.
    #[error("{} is read-only, or its file system is", .path.display())]
    ReadOnly {
        /// The directory.
        path: PathBuf,
    },
    /// The tier does not fit.
    #[error(
        "{}: a capacity of {capacity_bytes} bytes needs {needed_bytes} more on a file system with {free_bytes} free, of which \
         {floor_bytes} must stay free (reserve_free): at most {most_bytes} fit",
        .path.display()
    )]
    TooLarge {
        /// The directory.
        path: PathBuf,
        /// What was configured.
        capacity_bytes: u64,
        /// What the file does not have yet.
        needed_bytes: u64,
        /// What the file system can give.
        free_bytes: u64,
        /// What must stay free.
        floor_bytes: u64,
        /// The largest capacity that fits.
        most_bytes: u64,
    },
    /// The tier does not fit.
    #[error(
        "{}: a capacity of {capacity_bytes} bytes does not fit on a device of {device_bytes} bytes with its superblocks and log: \
         at most {most_bytes}",
        .path.display()
    )]
    DeviceTooSmall {
        /// The device.
        path: PathBuf,
        /// What was configured.
        capacity_bytes: u64,
        /// What it has.
        device_bytes: u64,
        /// The largest capacity that fits.
        most_bytes: u64,
    },
    /// The file is not ours, of a later version, or damaged. It was not changed.
    #[error("{}: {source}; it was left as it is: move it away, or configure another directory", .path.display())]
    Superblock {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: SuperblockError,
    },
    /// No file can be laid out so.
    #[error("{}: {source} (capacity {capacity_bytes} bytes)", .path.display())]
    Layout {
        /// The directory.
        path: PathBuf,
        /// What was configured.
        capacity_bytes: u64,
        /// Why not.
        source: SuperblockError,
    },
    /// The configuration demands what does not work here.
    #[error("{}: {demand} is demanded and does not work here: {why}", .path.display())]
    Demanded {
        /// The directory.
        path: PathBuf,
        /// Key and value.
        demand: &'static str,
        /// Why not.
        why: String,
    },
    /// A setting is out of its range.
    #[error("{}: {what} is {value}: expected {expected}", .path.display())]
    Setting {
        /// The directory.
        path: PathBuf,
        /// Which.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        expected: &'static str,
    },
    /// Its keys cannot be had. It was not changed.
    #[error("{}: {source}", .path.display())]
    Keys {
        /// The directory, or the device.
        path: PathBuf,
        /// Why not.
        source: KeyError,
    },
    /// Its index log cannot be read, or not be written anew.
    #[error("{}: {source}", .path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: LogError,
    },
    /// A system call failed.
    #[error("cannot {tried}: {}: {source}", .path.display())]
    Os {
        /// What was tried.
        tried: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl DiskError {
    /// Whether the disk is missing or does not work, as a drive that broke or was taken out: the daemon can go on with others.
    /// Everything else is for an operator to put right before the daemon starts. The error number, if so.
    pub(super) fn fault(&self) -> Option<i32> {
        let source = match self {
            DiskError::Os { source, .. } | DiskError::Log { source: LogError::Io { source, .. }, .. } => source,
            DiskError::ReadOnly { .. } => return Some(libc::EROFS),
            _ => return None,
        };
        let gone = [
            Errno::NOENT,
            Errno::IO,
            Errno::NODEV,
            Errno::NXIO,
            Errno::ROFS,
            Errno::NOMEDIUM,
            Errno::MEDIUMTYPE,
            Errno::NOTCONN,
            Errno::REMOTEIO,
            Errno::STALE,
            Errno::TIMEDOUT,
            Errno::SHUTDOWN,
            Errno::UCLEAN,
            Errno::BADMSG,
        ];
        Errno::from_io_error(source).filter(|errno| gone.contains(errno)).map(Errno::raw_os_error)
    }

    /// A failed system call.
    pub(super) fn os(tried: &'static str, path: &Path, source: impl Into<io::Error>) -> DiskError {
        DiskError::Os { tried, path: path.into(), source: source.into() }
    }
}

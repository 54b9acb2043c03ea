//! Errors that make a disk unusable.

use super::code::KeyError;
use kvtide_format::SuperblockError;
use kvtide_format::log::LogError;
use kvtide_types::{ByteSize, Human};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// A failed operation on a disk's directory or file. Files of other programs are never changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// Owned by another user.
    #[error(
        "{} is owned by uid {owner}, but the daemon runs as uid {me}. Give the daemon a directory of its own",
        .path.display()
    )]
    Owner {
        /// Directory or file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The daemon's uid.
        me: u32,
    },
    /// Accessible to other users, which could read prompts or change data.
    #[error(
        "{} is accessible to other users (mode {mode:04o}), but will hold KV data of prompts. Run: chmod go= {}",
        .path.display(),
        .path.display()
    )]
    Mode {
        /// Directory or file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Not a directory, or not a regular file.
    #[error("{} is not a {expected}", .path.display())]
    Kind {
        /// The path.
        path: PathBuf,
        /// The expected type.
        expected: &'static str,
    },
    /// Another process holds the lock.
    #[error(
        "{} is in use: by another daemon, by unfinished writes of a killed daemon (retry), or, if a device, by a mount, RAID or \
         LVM",
        .path.display()
    )]
    InUse {
        /// The file, or its directory.
        path: PathBuf,
    },
    /// Mounted read-only, or read-only after an error of its device.
    #[error("{} or its file system is read-only", .path.display())]
    ReadOnly {
        /// The directory.
        path: PathBuf,
    },
    /// The configured capacity does not fit on the file system.
    #[error(
        "{}: a capacity of {} does not fit: it needs {} more, {} are free, and {} must stay free (reserve_free). {}",
        .path.display(), Human(*.capacity_bytes), Human(*.needed_bytes), Human(*.free_bytes), Human(*.floor_bytes),
        set_at_most(*.most_bytes, "Free space on the file system, or configure another directory")
    )]
    TooLarge {
        /// The directory.
        path: PathBuf,
        /// The configured capacity.
        capacity_bytes: u64,
        /// Bytes that the file does not have yet.
        needed_bytes: u64,
        /// Free bytes of the file system.
        free_bytes: u64,
        /// Bytes that must stay free.
        floor_bytes: u64,
        /// The largest capacity that fits.
        most_bytes: u64,
    },
    /// The configured capacity does not fit on the device.
    #[error(
        "{}: a capacity of {} does not fit on a device of {} with superblocks and log. {}",
        .path.display(), Human(*.capacity_bytes), Human(*.device_bytes),
        set_at_most(*.most_bytes, "Configure a larger device, or a smaller tiers.nvme.slab")
    )]
    DeviceTooSmall {
        /// The device.
        path: PathBuf,
        /// The configured capacity.
        capacity_bytes: u64,
        /// Size of the device.
        device_bytes: u64,
        /// The largest capacity that fits.
        most_bytes: u64,
    },
    /// The file belongs to another program or a later version, or is damaged. It was not changed.
    #[error("{}: {source}. The file was not changed; move it away or configure another directory", .path.display())]
    Superblock {
        /// The file.
        path: PathBuf,
        /// The defect.
        source: SuperblockError,
    },
    /// The capacity allows no valid layout.
    #[error("{}: {source} (capacity {capacity_bytes} bytes)", .path.display())]
    Layout {
        /// The directory.
        path: PathBuf,
        /// The configured capacity.
        capacity_bytes: u64,
        /// The cause.
        source: SuperblockError,
    },
    /// A feature that the configuration requires does not work here.
    #[error("{}: {demand} is required but does not work here: {why}", .path.display())]
    Demanded {
        /// The directory.
        path: PathBuf,
        /// Key and value.
        demand: &'static str,
        /// The cause.
        why: String,
    },
    /// A setting is out of range.
    #[error("{}: {what} is {value}: expected {expected}", .path.display())]
    Setting {
        /// The directory.
        path: PathBuf,
        /// The setting.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The allowed range.
        expected: &'static str,
    },
    /// The encryption keys cannot be used. Nothing was changed.
    #[error("{}: {source}", .path.display())]
    Keys {
        /// The directory, or the device.
        path: PathBuf,
        /// The cause.
        source: KeyError,
    },
    /// The index log cannot be read or rewritten.
    #[error("{}: {source}", .path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: LogError,
    },
    /// A system call failed.
    #[error("cannot {tried}: {}: {source}", .path.display())]
    Os {
        /// The attempted action.
        tried: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl DiskError {
    /// Return the error number if the disk is missing or broken, as after a drive failure or removal: the daemon can run without
    /// it. For all other errors an operator must act before the daemon starts.
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

    /// Create an error for a failed system call.
    pub(super) fn os(tried: &'static str, path: &Path, source: impl Into<io::Error>) -> DiskError {
        DiskError::Os { tried, path: path.into(), source: source.into() }
    }
}

/// An error of a disk's threads.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A disk cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A system call of the shared layer failed.
    #[error("cannot {action}: {source}")]
    Wire {
        /// The attempted action.
        action: &'static str,
        /// Why it failed.
        source: kvtide_wire::error::Error,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// The attempted action.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// Say what to set instead of a capacity that does not fit: the largest one, rounded down to a number that is easy to type, or
/// `nothing_fits`.
fn set_at_most(most_bytes: u64, nothing_fits: &str) -> String {
    let unit = [30, 20, 10].into_iter().map(|shift| 1u64 << shift).find(|unit| most_bytes >= 16 * unit).unwrap_or(1);
    match most_bytes / unit * unit {
        0 => nothing_fits.to_owned(),
        most => format!("Set capacity to \"{}\" at most", ByteSize(most)),
    }
}

#[cfg(test)]
mod tests {
    use super::set_at_most;

    #[test]
    fn what_to_set_is_easy_to_type_and_fits() {
        assert_eq!(set_at_most((206 << 30) + 12_345, ""), "Set capacity to \"206GiB\" at most");
        assert_eq!(set_at_most((5 << 30) + (1 << 20), ""), "Set capacity to \"5121MiB\" at most");
        assert_eq!(set_at_most(0, "Free space"), "Free space");
    }
}

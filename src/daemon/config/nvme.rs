//! The NVMe tier: values that follow from several keys.

use super::constants;
use super::table::{Disk, Encryption, NvmeTier};
use kvtide_types::Codec;
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};

impl NvmeTier {
    /// Return the capacity of all disks in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.disks.iter().map(|disk| disk.capacity_bytes).sum()
    }

    /// Return the number of whole slabs of a disk.
    #[must_use]
    pub fn slabs_of(&self, disk: &Disk) -> u64 {
        disk.capacity_bytes / self.slab_bytes
    }

    /// Return the bytes of the whole slabs of all disks, which is what spaces can get.
    #[must_use]
    pub fn slabs_bytes(&self) -> u64 {
        self.disks.iter().map(|disk| self.slabs_of(disk) * self.slab_bytes).sum()
    }

    /// Return the number of transfers of one space that may be in flight: for each disk, twice the queue depth or `writeback_bytes`
    /// of slots, whichever is more. So small blocks can be merged into larger requests.
    #[must_use]
    pub fn ios_max(&self, slot_bytes: u64) -> u32 {
        let blocks = u32::try_from(self.writeback_bytes / slot_bytes.max(1)).unwrap_or(u32::MAX);
        let a_disk = (2 * u32::from(self.depth)).max(blocks);
        a_disk.saturating_mul(self.disks.len() as u32).min(constants::SPACE_IOS_MAX)
    }

    /// Return the write budget of all disks in bytes a day; `None` if at least one disk has no limit.
    #[must_use]
    pub fn bytes_per_day(&self) -> Option<u64> {
        self.disks.iter().map(|disk| disk.bytes_per_day).sum()
    }

    /// Return true if pages of new slabs pass through the codec threads.
    #[must_use]
    pub fn codes(&self) -> bool {
        self.codec != Codec::None || self.encryption.encrypts()
    }

    /// Return true if at least one disk is a raw device.
    #[must_use]
    pub fn has_devices(&self) -> bool {
        self.disks.iter().any(|disk| disk.device.is_some())
    }
}

impl Disk {
    /// Return the directory or device.
    #[must_use]
    pub fn place(&self) -> Place<'_> {
        match (&self.dir, &self.device) {
            (Some(dir), _) => Place::Dir(dir),
            (None, Some(device)) => Place::Device(device),
            (None, None) => unreachable!("a disk without a path is refused"),
        }
    }
}

/// Location of a disk's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// A file in this directory. Only the daemon uses the directory.
    Dir(&'a Path),
    /// This block device. Only the daemon uses it.
    Device(&'a Path),
}

impl<'a> Place<'a> {
    /// Return the path of the directory or device.
    #[must_use]
    pub fn path(self) -> &'a Path {
        match self {
            Place::Dir(path) | Place::Device(path) => path,
        }
    }

    /// Return the configuration key.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Place::Dir(_) => "dir",
            Place::Device(_) => "device",
        }
    }
}

/// Kind of master key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyKind {
    /// No key, no encryption.
    Off,
    /// A file.
    File,
    /// A credential of systemd.
    Credential,
    /// A random key made at start and kept in memory only.
    Ephemeral,
}

/// Source of the master key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// No key, no encryption.
    Off,
    /// This file.
    File(PathBuf),
    /// This file in the directory that systemd passes in `$CREDENTIALS_DIRECTORY`.
    Credential(String),
    /// A random key made at start and kept in memory only.
    Ephemeral,
}

impl Encryption {
    /// Return the source of the master key.
    #[must_use]
    pub fn source(&self) -> KeySource {
        match (self.key, &self.path) {
            (KeyKind::File, Some(path)) => KeySource::File(path.clone()),
            (KeyKind::Off | KeyKind::File, _) => KeySource::Off,
            (KeyKind::Credential, _) => KeySource::Credential(self.name.clone()),
            (KeyKind::Ephemeral, _) => KeySource::Ephemeral,
        }
    }

    /// Return true if new slabs are encrypted.
    #[must_use]
    pub fn encrypts(&self) -> bool {
        self.key != KeyKind::Off && self.new_slabs
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyKind::Off => "off",
            KeyKind::File => "file",
            KeyKind::Credential => "credential",
            KeyKind::Ephemeral => "ephemeral",
        })
    }
}

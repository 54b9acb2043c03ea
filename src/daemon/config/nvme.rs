//! Configuration of the NVMe tier.

use super::{ByteSize, Reserve, defaults};
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `[tiers.nvme]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeTier {
    /// `[[tiers.nvme.disks]]`: at least one.
    pub disks: Vec<Disk>,
    /// Bytes of one slab (one region of a disk), the unit in which spaces get disk space. A multiple of 4096.
    pub slab_bytes: u64,
    /// Percent of slots in use above which unreferenced published blocks are dropped.
    pub high_percent: u8,
    /// Percent at which dropping stops.
    pub low_percent: u8,
    /// Which published blocks are written to NVMe.
    pub admission: Admission,
    /// Compression of pages in new slabs.
    pub codec: Codec,
    /// Threads of each disk for compression and encryption; 0: half of the CPU cores, 2 to 8.
    pub codec_threads: u16,
    /// Encryption of new slabs.
    pub encryption: Encryption,
    /// Error rate that takes a disk out of service.
    pub errors: ErrorRate,
    /// Discard of unused regions of raw devices; `None`: disabled.
    pub discard: Option<Discard>,
    /// I/O engine.
    pub io: IoEngine,
    /// Bypass of the page cache (`O_DIRECT`).
    pub direct: Demand,
    /// Registration of host memory with io_uring.
    pub registered: Demand,
    /// Maximum number of requests in flight at each disk.
    pub depth: u16,
    /// Maximum bytes of write-back in flight to each disk. The limit is lowered while reads suffer from it.
    pub writeback_bytes: u64,
    /// Time at the device after which a request makes the disk count as stalled. A request that waits as long in the queue fails.
    pub timeout: Duration,
}

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
        a_disk.saturating_mul(self.disks.len() as u32).min(defaults::SPACE_IOS_MAX)
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
        self.disks.iter().any(|disk| matches!(disk.place, Place::Device(_)))
    }
}

/// One disk of the NVMe tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Directory or device.
    pub place: Place,
    /// Bytes for slabs.
    pub capacity_bytes: u64,
    /// Reserve of its file system that must stay free; zero for a raw device.
    pub reserve_free: Reserve,
    /// Write budget: maximum bytes written in 24 hours, all writes included; `None`: unlimited.
    pub bytes_per_day: Option<u64>,
    /// Rated endurance in bytes (TBW); `None`: unknown.
    pub endurance_bytes: Option<u64>,
    /// Share of new prefix chains for its size, relative to the weights of the other disks: how fast it is.
    pub weight: u32,
}

/// Location of a disk's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file in this directory. Only the daemon uses the directory.
    Dir(PathBuf),
    /// This block device. Only the daemon uses it.
    Device(PathBuf),
}

impl Place {
    /// Return the path of the directory or device.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Place::Dir(path) | Place::Device(path) => path,
        }
    }

    /// Return the configuration key.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Place::Dir(_) => "dir",
            Place::Device(_) => "device",
        }
    }
}

pub use kvtide_types::{Admission, Codec};

/// `[tiers.nvme.encryption]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encryption {
    /// Source of the master key.
    pub source: KeySource,
    /// True: encrypt pages and index records of new slabs. False: only read slabs that are already encrypted.
    pub new_slabs: bool,
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
    /// Return true if new slabs are encrypted.
    #[must_use]
    pub fn encrypts(&self) -> bool {
        self.source != KeySource::Off && self.new_slabs
    }
}

/// Rate of device errors that takes a disk out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRate {
    /// Number of errors.
    pub errors_max: u32,
    /// Period in which they count.
    pub window: Duration,
}

/// Pace of discarding unused regions of raw devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discard {
    /// Maximum bytes a second.
    pub bytes_per_s: u64,
    /// Idle time of a disk before a discard.
    pub idle: Duration,
}

/// I/O engine of the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoEngine {
    /// `io_uring` if the system allows it, else threads. The choice is logged and exported.
    Auto,
    /// `io_uring`; without it the daemon does not start.
    IoUring,
    /// Threads with `pread` and `pwrite`.
    Threads,
}

/// Use of a feature that not every system supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Demand {
    /// Used if it works. The result is logged and exported.
    Auto,
    /// Used; without it the daemon does not start.
    Required,
    /// Not used.
    Off,
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeySource::Off => "off",
            KeySource::File(_) => "file",
            KeySource::Credential(_) => "credential",
            KeySource::Ephemeral => "ephemeral",
        })
    }
}

impl fmt::Display for IoEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoEngine::Auto => "auto",
            IoEngine::IoUring => "io_uring",
            IoEngine::Threads => "threads",
        })
    }
}

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Demand::Auto => "auto",
            Demand::Required => "required",
            Demand::Off => "off",
        })
    }
}

/// Return the size in the form of the file: 0 means unlimited or unknown.
pub(super) fn size_or_zero(bytes: Option<u64>) -> ByteSize {
    ByteSize(bytes.unwrap_or(0))
}

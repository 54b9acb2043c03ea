//! The NVMe tier's part of a configuration.

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
    /// Bytes of one slab (one region of a disk): the unit in which spaces get NVMe space. A multiple of 4096.
    pub slab_bytes: u64,
    /// Percent of slots in use at which unreferenced published blocks start to be dropped.
    pub high_percent: u8,
    /// Percent at which that stops.
    pub low_percent: u8,
    /// Which published blocks are written down.
    pub admission: Admission,
    /// How pages of new slabs are stored.
    pub codec: Codec,
    /// Threads of each disk that encode, decode, encrypt and decrypt; 0: half of the cores, 2 to 8.
    pub codec_threads: u16,
    /// Whether and with which key new slabs are encrypted.
    pub encryption: Encryption,
    /// How many errors take a disk out of service.
    pub errors: ErrorRate,
    /// How regions of raw devices that nobody has are given back to the device; `None`: they are not.
    pub discard: Option<Discard>,
    /// How requests reach the disks.
    pub io: IoEngine,
    /// Whether the page cache is passed by (`O_DIRECT`).
    pub direct: Demand,
    /// Whether host memory is registered with the ring.
    pub registered: Demand,
    /// Requests at one disk at once.
    pub depth: u16,
    /// Bytes of cleaning in flight to one disk, at most; it is less while reads suffer from it.
    pub writeback_bytes: u64,
    /// How long a request may be at the device before the disk counts as stalled; a request that was not begun by then is
    /// given up.
    pub timeout: Duration,
}

impl NvmeTier {
    /// Bytes over all disks.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.disks.iter().map(|disk| disk.capacity_bytes).sum()
    }

    /// Whole slabs of a disk.
    #[must_use]
    pub fn slabs_of(&self, disk: &Disk) -> u64 {
        disk.capacity_bytes / self.slab_bytes
    }

    /// Bytes of the whole slabs of all disks: what can be granted.
    #[must_use]
    pub fn slabs_bytes(&self) -> u64 {
        self.disks.iter().map(|disk| self.slabs_of(disk) * self.slab_bytes).sum()
    }

    /// Transfers of one space in flight at once: twice the queue depth of every disk, or `writeback_bytes` of its slots, so that small blocks can
    /// be merged into larger requests.
    #[must_use]
    pub fn ios_max(&self, slot_bytes: u64) -> u32 {
        let blocks = u32::try_from(self.writeback_bytes / slot_bytes.max(1)).unwrap_or(u32::MAX);
        let a_disk = (2 * u32::from(self.depth)).max(blocks);
        a_disk.saturating_mul(self.disks.len() as u32).min(defaults::SPACE_IOS_MAX)
    }

    /// Bytes that may be written in a day over all disks; `None`: as many as come, to one disk at least.
    #[must_use]
    pub fn bytes_per_day(&self) -> Option<u64> {
        self.disks.iter().map(|disk| disk.bytes_per_day).sum()
    }

    /// Whether pages of new slabs pass through the codec threads.
    #[must_use]
    pub fn codes(&self) -> bool {
        self.codec != Codec::None || self.encryption.encrypts()
    }

    /// Whether at least one disk is a raw device.
    #[must_use]
    pub fn has_devices(&self) -> bool {
        self.disks.iter().any(|disk| matches!(disk.place, Place::Device(_)))
    }
}

/// One disk of the NVMe tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Where its bytes are.
    pub place: Place,
    /// Bytes that slabs may take on it.
    pub capacity_bytes: u64,
    /// What of its file system stays free; nothing of a raw device, which has none.
    pub reserve_free: Reserve,
    /// Bytes that may be written to it in 24 hours, everything counted; `None`: as many as come.
    pub bytes_per_day: Option<u64>,
    /// Bytes that its maker lets be written to it in its life (TBW); `None`: not told.
    pub endurance_bytes: Option<u64>,
    /// How many of the new prefix runs it gets for its size, relative to the other disks' weights: how fast it is.
    pub weight: u32,
}

/// Where a disk's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file in this directory, which is the daemon's alone.
    Dir(PathBuf),
    /// On this block device, which is the daemon's alone.
    Device(PathBuf),
}

impl Place {
    /// The directory or the device.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Place::Dir(path) | Place::Device(path) => path,
        }
    }

    /// The key that names it.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Place::Dir(_) => "dir",
            Place::Device(_) => "device",
        }
    }
}

/// Which published blocks are written to NVMe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Admission {
    /// Every one, soon after it was published.
    All,
    /// One that was asked for again after it was published.
    SecondTouch,
    /// As many as the disks' `bytes_per_day` pay for, those that promise the most hits first.
    Budget,
}

/// How pages are stored on NVMe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Codec {
    /// As they are.
    None,
    /// LZ4.
    Lz4,
    /// The bytes of each value apart, and zstd at level 1.
    PlanesZstd,
}

/// `[tiers.nvme.encryption]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encryption {
    /// The master key.
    pub source: KeySource,
    /// Whether pages and index records of new slabs are encrypted with it, and not only what is encrypted already is read.
    pub new_slabs: bool,
}

/// Where the master key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// There is none, and nothing is encrypted.
    Off,
    /// With the key in this file.
    File(PathBuf),
    /// With the key in this file of the directory that systemd names in `$CREDENTIALS_DIRECTORY`.
    Credential(String),
    /// With a key that is made when the daemon starts and is nowhere but in its memory.
    Ephemeral,
}

impl Encryption {
    /// Whether new slabs are encrypted.
    #[must_use]
    pub fn encrypts(&self) -> bool {
        self.source != KeySource::Off && self.new_slabs
    }
}

/// How many errors of a device, within how long, take its disk out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRate {
    /// With so many it is out.
    pub errors_max: u32,
    /// Errors that are older do not count.
    pub window: Duration,
}

/// How unused regions of raw devices are discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discard {
    /// Bytes a second, at most.
    pub bytes_per_s: u64,
    /// How long a disk must have had no request before it is asked to discard.
    pub idle: Duration,
}

/// How requests reach a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoEngine {
    /// `io_uring` where the system allows it, else threads; which one is logged and exported.
    Auto,
    /// `io_uring`, or the daemon does not start.
    IoUring,
    /// Threads with `pread` and `pwrite`.
    Threads,
}

/// Whether something that not every system offers must be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Demand {
    /// Used where it works; whether it does is logged and exported.
    Auto,
    /// Used, or the daemon does not start.
    Required,
    /// Not used.
    Off,
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Admission::All => "all",
            Admission::SecondTouch => "second-touch",
            Admission::Budget => "budget",
        })
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Codec::None => "none",
            Codec::Lz4 => "lz4",
            Codec::PlanesZstd => "planes-zstd",
        })
    }
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

/// Bytes, or 0 for what is not limited or not told: as it stands in a file.
pub(super) fn size_or_zero(bytes: Option<u64>) -> ByteSize {
    ByteSize(bytes.unwrap_or(0))
}

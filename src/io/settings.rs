//! What an operator chooses about a disk.

use super::code::{Codec, Encryption};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A disk of the NVMe tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Its number, dense from 0, below `DISKS_MAX`.
    pub number: u16,
    /// Where its bytes are.
    pub place: Place,
    /// Bytes that regions may take, at most; 0, of a device: all that it has. Whole regions are used.
    pub capacity_bytes: u64,
    /// Bytes of a region (a slab), a multiple of `format::SECTOR`.
    pub region_bytes: u64,
    /// What the file system must keep free; nothing to a device.
    pub reserve_free: Floor,
    /// How requests reach the kernel.
    pub engine: EngineChoice,
    /// Whether the page cache is passed by.
    pub direct: Choice,
    /// Whether host memory is registered with the ring.
    pub registered: Choice,
    /// Requests at the device at once, 1 to 1024.
    pub depth: u32,
    /// Bytes of write-back at the device at once, at most; adapted below this to what demand reads suffer.
    pub writeback_bytes: u64,
    /// A transfer that has not begun after this long ends with `TimedOut`; one that the device has had for longer marks the disk
    /// as stalled.
    pub timeout: Duration,
    /// Bytes of aligned memory of its own, for pages that are no whole sectors.
    pub staging_bytes: u64,
    /// How pages of new slabs are stored.
    pub codec: Codec,
    /// Threads that encode, decode, encrypt and decrypt; 0: as the machine has cores for.
    pub codec_threads: u16,
    /// Whether pages of new slabs are encrypted, and by what key.
    pub encryption: Encryption,
    /// So many errors of the device within `errors_window` take it out of service; at least 1.
    pub errors_max: u32,
    /// See `errors_max`.
    pub errors_window: Duration,
    /// How a raw device is told of regions that hold nothing; nothing: it is not.
    pub discard: Option<Discard>,
}

/// How a raw device is told of regions that hold nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Discard {
    /// Bytes a second, at most; at least 1.
    pub bytes_per_s: u64,
    /// How long nobody must have wanted the device.
    pub idle: Duration,
}

/// Where a disk's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a file of this directory, which is made (0700) if it does not exist.
    Dir(PathBuf),
    /// On this block device, from its begin.
    Device(PathBuf),
}

impl Place {
    /// Of the directory, or the device.
    pub fn path(&self) -> &Path {
        match self {
            Place::Dir(path) | Place::Device(path) => path,
        }
    }
}

/// How requests reach the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EngineChoice {
    /// io_uring where the kernel allows it, else threads.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// `preadv` and `pwritev` on a few threads.
    Threads,
}

/// Whether something is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Where it works.
    #[default]
    Auto,
    /// Or the start fails.
    Required,
    /// Never.
    Off,
}

/// What a file system must keep free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Floor {
    /// Percent of its size.
    Percent(u8),
    /// Bytes.
    Bytes(u64),
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            number: 0,
            place: Place::Dir(PathBuf::new()),
            capacity_bytes: 0,
            region_bytes: 256 << 20,
            reserve_free: Floor::Percent(5),
            engine: EngineChoice::Auto,
            direct: Choice::Auto,
            registered: Choice::Auto,
            depth: 128,
            writeback_bytes: 8 << 20,
            timeout: Duration::from_secs(10),
            staging_bytes: 4 << 20,
            codec: Codec::None,
            codec_threads: 0,
            encryption: Encryption::default(),
            errors_max: 16,
            errors_window: Duration::from_secs(60),
            discard: Some(Discard { bytes_per_s: 1 << 30, idle: Duration::from_secs(1) }),
        }
    }
}

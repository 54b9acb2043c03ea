//! Settings of a disk.

use super::code::{Codec, Encryption};
pub use kvtide_types::{FeatureUse, IoEngine, Reserve};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Device errors that take a disk out of service. Single errors are bad sectors.
const ERRORS_MAX: u32 = 16;

/// A disk of the NVMe tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its number, dense from 0, below `DISKS_MAX`.
    pub number: u16,
    /// Location of its bytes.
    pub place: Place,
    /// Maximum bytes of its regions; 0 on a device: all of it. Rounded down to whole regions.
    pub capacity_bytes: u64,
    /// Bytes of a region (a slab), a multiple of `format::SECTOR`.
    pub region_bytes: u64,
    /// Space that must stay free on the file system; ignored for a device.
    pub reserve_free: Reserve,
    /// I/O engine.
    pub engine: IoEngine,
    /// Bypass the page cache (O_DIRECT).
    pub direct: FeatureUse,
    /// Register host memory with the ring.
    pub registered: FeatureUse,
    /// Maximum requests in flight, 1 to 1024.
    pub depth: u32,
    /// Maximum write-back bytes in flight; the limit adapts below this to the latency of demand reads.
    pub writeback_bytes: u64,
    /// A transfer that has not started after this time ends with `TimedOut`; a request in flight for longer marks the disk as
    /// stalled.
    pub timeout: Duration,
    /// Bytes of the staging buffer, for pages that are not whole sectors.
    pub staging_bytes: u64,
    /// Codec of new slabs.
    pub codec: Codec,
    /// Number of coding threads; 0: chosen by the number of cores.
    pub codec_threads: u16,
    /// Encryption of new slabs, and the key.
    pub encryption: Encryption,
    /// This many device errors within a minute take the disk out of service; at least 1.
    pub errors_max: u32,
    /// Discard of free regions on a raw device; None: off.
    pub discard: Option<Discard>,
}

/// Settings of discard on a raw device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discard {
    /// Maximum bytes per second; at least 1.
    pub bytes_per_s: u64,
    /// How long the device must have been idle.
    pub idle: Duration,
}

impl Discard {
    /// At this rate a terabyte takes a quarter of an hour, and requests do not wait long behind a discard. The time is longer than the
    /// pauses between steps of an engine.
    pub const DEFAULT: Discard = Discard { bytes_per_s: 1 << 30, idle: Duration::from_secs(1) };
}

/// Location of a disk's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file in this directory, which is created (mode 0700) if missing.
    Dir(PathBuf),
    /// This block device, from its start.
    Device(PathBuf),
}

impl Place {
    /// Return the path of the directory or device.
    pub fn path(&self) -> &Path {
        match self {
            Place::Dir(path) | Place::Device(path) => path,
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            number: 0,
            place: Place::Dir(PathBuf::new()),
            capacity_bytes: 0,
            region_bytes: 256 << 20,
            reserve_free: Reserve::Percent(5),
            engine: IoEngine::Auto,
            direct: FeatureUse::Auto,
            registered: FeatureUse::Auto,
            depth: 128,
            writeback_bytes: 8 << 20,
            timeout: Duration::from_secs(10),
            staging_bytes: 4 << 20,
            codec: Codec::None,
            codec_threads: 0,
            encryption: Encryption::default(),
            errors_max: ERRORS_MAX,
            discard: Some(Discard::DEFAULT),
        }
    }
}

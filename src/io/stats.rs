//! What a disk has done and how it stands: plain counters of its thread, told as a snapshot.

use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Buckets of a [`Histogram`].
pub(crate) const BUCKETS: usize = 32;

/// Microseconds by powers of two: bucket `n` counts what took at least 2ⁿ⁻¹ and less than 2ⁿ; bucket 0 what took less than 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Histogram {
    /// Counts.
    pub buckets: [u64; BUCKETS],
    /// Sum of all, in microseconds.
    pub sum_us: u64,
}

/// Transfers of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ClassStatus {
    /// Waiting for their turn.
    pub queued: u64,
    /// At the device.
    pub at_device: u64,
    /// Reads that ended well.
    pub reads: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// Writes that ended well.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
    /// Transfers that failed.
    pub failed: u64,
    /// Transfers that were never begun in time.
    pub timed_out: u64,
    /// How long transfers waited for their turn.
    pub waited: Histogram,
    /// How long the device had them.
    pub device: Histogram,
}

/// How a disk stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct DiskStatus {
    /// Its number.
    pub number: u16,
    /// Its directory.
    pub dir: PathBuf,
    /// How its bytes move, for example `io_uring+direct+fixed`.
    pub mode: String,
    /// Bytes of all its regions.
    pub capacity_bytes: u64,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Regions.
    pub regions: u32,
    /// Regions that were written once and can be granted.
    pub regions_ready: u32,
    /// Demand, prefetch, write-back.
    pub classes: [ClassStatus; 3],
    /// Errors by error number.
    pub errors: BTreeMap<i32, u64>,
    /// Completions that fell short; the rest was asked for again.
    pub short: u64,
    /// Pages that were read and are not what was written.
    pub checksum_failures: u64,
    /// Transfers that went through the disk's own memory because their pages are no whole sectors.
    pub staged: u64,
    /// Requests that the engine takes at once.
    pub depth: u32,
    /// Requests at the device now.
    pub at_device: u32,
    /// Bytes of write-back that may be at the device now.
    pub writeback_cap_bytes: u64,
    /// Bytes of write-back that are.
    pub writeback_bytes: u64,
    /// The device has had a request for longer than the timeout.
    pub stalled: bool,
    /// Requests that it has had for longer.
    pub stalled_requests: u32,
    /// Bytes written since midnight (UTC), or since the start if that was later; first writes of regions included.
    pub written_today_bytes: u64,
    /// Bytes written in the store's life.
    pub written_ever_bytes: u64,
    /// Bytes of host memory registered with the ring.
    pub registered_bytes: u64,
}

//! Stats of a disk: counters of its thread, published as a snapshot.

use super::code::CodeStatus;
use super::log::LogReport;
use kvtide_rt::histogram::Histogram;
use kvtide_types::{IoClass, IoKind, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Transfers of one class in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WayStatus {
    /// Completed transfers.
    pub transfers: u64,
    /// Bytes transferred.
    pub bytes: u64,
    /// Transfers that failed.
    pub failed: u64,
    /// Transfers that did not start in time.
    pub timed_out: u64,
    /// Queueing time of completed transfers.
    pub waited: Histogram,
    /// Device time of completed transfers.
    pub device: Histogram,
}

/// Transfers of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassStatus {
    /// Waiting transfers.
    pub queued: u64,
    /// Transfers at the device.
    pub at_device: u64,
    /// From NVMe to host memory.
    pub reads: WayStatus,
    /// From host memory to NVMe.
    pub writes: WayStatus,
}

/// Bytes written to a disk, by reason; those of the log are in [`LogReport`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WrittenStatus {
    /// Bytes of pages.
    pub page_bytes: u64,
    /// Bytes of requests with pages: whole sectors, including the bytes between pages.
    pub request_bytes: u64,
    /// Bytes of superblocks.
    pub superblock_bytes: u64,
}

impl DiskStatus {
    /// Return the bytes written to the device per byte of pages, including records and their compaction; None before the first
    /// page.
    pub fn write_amplification(&self) -> Option<f64> {
        let page_bytes = self.written.page_bytes;
        (page_bytes > 0).then(|| self.written_bytes() as f64 / page_bytes as f64)
    }

    /// Return the bytes written to the device since start: pages, superblocks, records and their compaction.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        let WrittenStatus { request_bytes, superblock_bytes, .. } = self.written;
        request_bytes + superblock_bytes + self.log.appended_bytes + self.log.compacted_bytes
    }
}

/// Status of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskStatus {
    /// Its number.
    pub number: u16,
    /// Its directory.
    pub dir: PathBuf,
    /// I/O mode, for example `io_uring+direct+fixed`.
    pub mode: String,
    /// Bytes of all its regions.
    pub capacity_bytes: u64,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Number of regions.
    pub regions: u32,
    /// Demand, prefetch, write-back.
    pub classes: [ClassStatus; 3],
    /// If out of service: the last error number; 0: short requests.
    pub out_of_service: Option<i32>,
    /// The reason as text, with the remedy; empty while in service.
    pub why_out: String,
    /// Status of its index log.
    pub log: LogReport,
    /// Bytes written since start, without the log.
    pub written: WrittenStatus,
    /// Device errors by error number; 0: requests that stayed short.
    pub errors: BTreeMap<i32, u64>,
    /// Requests sent to the device; blocks in neighbouring slots share one.
    pub requests: u64,
    /// Short completions; the rest was requested again.
    pub short: u64,
    /// Pages compared with their sampled digest before they were written.
    pub sample_checked: u64,
    /// Pages that differed; they were not written.
    pub sample_failed: u64,
    /// Pages with a checksum mismatch when read.
    pub checksum_failures: u64,
    /// Stats of codecs and encryption.
    #[serde(skip_deserializing)] // no tool reads them
    pub code: CodeStatus,
    /// Time spent on checksums, in nanoseconds.
    pub checksum_ns: u64,
    /// Staged requests, because pages are not whole sectors.
    pub staged: u64,
    /// Staged writes that read their sectors first.
    pub filled: u64,
    /// Maximum requests in flight.
    pub depth: u32,
    /// Requests in flight.
    pub at_device: u32,
    /// Age of the oldest request in flight, in microseconds.
    pub oldest_us: u64,
    /// Current limit of write-back bytes in flight.
    pub writeback_cap_bytes: u64,
    /// Write-back bytes in flight.
    pub writeback_bytes: u64,
    /// A request has been in flight for longer than the timeout.
    pub stalled: bool,
    /// Number of such requests.
    pub stalled_requests: u32,
    /// How long the disk has been stalled, in microseconds.
    pub stalled_us: u64,
    /// Bytes written since midnight (UTC), or since start if later, including the log.
    pub written_today_bytes: u64,
    /// Bytes written in the lifetime of the store.
    pub written_ever_bytes: u64,
    /// Bytes of host memory registered with the ring.
    pub registered_bytes: u64,
    /// Bytes of host memory that could not be registered.
    pub unregistered_bytes: u64,
}

impl DiskStatus {
    /// Return the bytes of pages read and written.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        let sum = |way: fn(&ClassStatus) -> u64| self.classes.iter().map(way).sum();
        (sum(|class| class.reads.bytes), sum(|class| class.writes.bytes))
    }

    /// Return the number of failed transfers.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.classes.iter().map(|class| class.reads.failed + class.writes.failed).sum()
    }

    /// Return the number of queued transfers.
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.classes.iter().map(|class| class.queued).sum()
    }

    /// Return the counters of a class and direction.
    pub(super) fn way(&mut self, class: IoClass, kind: IoKind) -> &mut WayStatus {
        let class = &mut self.classes[class as usize];
        match kind {
            IoKind::Read => &mut class.reads,
            IoKind::Write => &mut class.writes,
        }
    }

    /// Count a transfer that has ended.
    pub(super) fn ended(
        &mut self,
        class: IoClass,
        kind: IoKind,
        status: Status,
        bytes: u64,
        waited_us: u64,
        device_us: u64,
    ) {
        let way = self.way(class, kind);
        match status {
            Status::Ok => {
                way.transfers += 1;
                way.bytes += bytes;
                way.waited.add(waited_us);
                way.device.add(device_us);
            }
            Status::TimedOut => way.timed_out += 1,
            _ => way.failed += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_fall_between_powers_of_two() {
        let mut histogram = Histogram::default();
        for us in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX] {
            histogram.add(us);
        }
        let filled: Vec<(usize, u64)> = (0..).zip(histogram.buckets).filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(0, 1), (1, 1), (2, 2), (3, 1), (10, 1), (11, 1), (31, 1)]);
        assert_eq!(histogram.sum_us, u64::MAX);
    }
}

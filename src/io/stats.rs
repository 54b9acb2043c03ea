//! What a disk has done and how it stands: plain counters of its thread, told as a snapshot.

use super::code::CodeStatus;
use super::log::LogReport;
use crate::histogram::Histogram;
use kvtide_tiering::api::{IoClass, IoKind, Status};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Transfers of one class, one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct WayStatus {
    /// Transfers that ended well.
    pub transfers: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Transfers that failed.
    pub failed: u64,
    /// Transfers that were not begun in time.
    pub timed_out: u64,
    /// How long those that ended well waited for their turn.
    pub waited: Histogram,
    /// How long the device had them.
    pub device: Histogram,
}

/// Transfers of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ClassStatus {
    /// Waiting for their turn.
    pub queued: u64,
    /// At the device.
    pub at_device: u64,
    /// From NVMe to host memory.
    pub reads: WayStatus,
    /// From host memory to NVMe.
    pub writes: WayStatus,
}

/// Bytes written to a disk, by reason; the log's are in [`LogReport`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct WrittenStatus {
    /// Of pages, as they were asked to be written.
    pub page_bytes: u64,
    /// Of requests that carried pages: whole sectors, and what stands between.
    pub request_bytes: u64,
    /// Of superblocks.
    pub superblock_bytes: u64,
}

impl DiskStatus {
    /// Bytes that went to the device for every byte of a page, records and their compaction included; nothing before a page was written.
    pub fn write_amplification(&self) -> Option<f64> {
        let WrittenStatus { page_bytes, request_bytes, superblock_bytes } = self.written;
        let all = request_bytes + superblock_bytes + self.log.appended_bytes + self.log.compacted_bytes;
        (page_bytes > 0).then(|| all as f64 / page_bytes as f64)
    }
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
    /// Bytes of its file.
    pub file_bytes: u64,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Regions.
    pub regions: u32,
    /// Demand, prefetch, write-back.
    pub classes: [ClassStatus; 3],
    /// Why it is out of service, if it is: the error number that it said last; 0: requests fell short.
    pub out_of_service: Option<i32>,
    /// The same in words, with what to do; empty while it serves.
    pub why_out: String,
    /// How its index log stands.
    pub log: LogReport,
    /// What was written to it since the start, besides the log.
    pub written: WrittenStatus,
    /// Errors of the device by error number; 0: requests that fell short for good.
    pub errors: BTreeMap<i32, u64>,
    /// Requests that the device was given; blocks of neighbouring slots go in one.
    pub requests: u64,
    /// Completions that fell short; the rest was asked for again.
    pub short: u64,
    /// Pages about to be written whose digest from when they were stored was known and compared.
    pub canary_checked: u64,
    /// Of them, those that are not what was stored; they were not written.
    pub canary_failed: u64,
    /// Pages that were read and are not what was written.
    pub checksum_failures: u64,
    /// What codecs and encryption did and cost.
    pub code: CodeStatus,
    /// Time that checksums took, in nanoseconds.
    pub checksum_ns: u64,
    /// Requests that went through the disk's own memory because their pages are no whole sectors.
    pub staged: u64,
    /// Staged writes that had to read their sectors first.
    pub filled: u64,
    /// Requests that the device may have at once.
    pub depth: u32,
    /// Requests that it has.
    pub at_device: u32,
    /// How long it has had the oldest of them, in microseconds.
    pub oldest_us: u64,
    /// Bytes of write-back that may be at the device now.
    pub writeback_cap_bytes: u64,
    /// Bytes of write-back that are.
    pub writeback_bytes: u64,
    /// The device has had a request for longer than the timeout.
    pub stalled: bool,
    /// Requests that it has had for longer.
    pub stalled_requests: u32,
    /// For how long the disk has been stalled, in microseconds.
    pub stalled_us: u64,
    /// Bytes written since midnight (UTC), or since the start if that was later; the log included.
    pub written_today_bytes: u64,
    /// Bytes written in the store's life.
    pub written_ever_bytes: u64,
    /// Bytes of host memory registered with the ring.
    pub registered_bytes: u64,
    /// Bytes of host memory that could not be registered.
    pub unregistered_bytes: u64,
}

impl DiskStatus {
    /// The counters of a class and a way.
    pub(super) fn way(&mut self, class: IoClass, kind: IoKind) -> &mut WayStatus {
        let class = &mut self.classes[class as usize];
        match kind {
            IoKind::Read => &mut class.reads,
            IoKind::Write => &mut class.writes,
        }
    }

    /// Counts a transfer that has ended.
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

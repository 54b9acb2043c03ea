//! Metrics of a disk's index log, of recovery at start, and of bytes written and drive endurance.

use super::disk::{by_disk_real, disk_figure, each};
use super::family::{Family, Samples};
use crate::status::{DriveEndurance, Snapshot};
use kvtide_nvme::{DiskStatus, RecoveryReport};

/// Return the unusable entries that the start found, by label value.
fn findings(recovery: &RecoveryReport) -> [(&'static str, u64); 7] {
    let RecoveryReport { sealed, torn, stale, corrupt, unreadable, lost_unflushed, partial, .. } = *recovery;
    [
        ("torn", torn),
        ("stale", stale),
        ("corrupt", corrupt),
        ("lost_unflushed", lost_unflushed),
        ("unreadable", unreadable),
        ("sealed", sealed),
        ("partial", partial.into()),
    ]
}

/// Return the bytes written to the device since the daemon started, by label value.
fn written(disk: &DiskStatus) -> [(&'static str, u64); 4] {
    [
        ("pages", disk.written.request_bytes),
        ("records", disk.log.appended_bytes),
        ("compaction", disk.log.compacted_bytes),
        ("superblock", disk.written.superblock_bytes),
    ]
}

/// Return the bytes that earlier runs wrote: those of the store's life minus those of this run.
fn earlier(disk: &DiskStatus) -> u64 {
    let now: u64 = written(disk).iter().map(|(_, bytes)| bytes).sum();
    disk.written_ever_bytes.saturating_sub(now)
}

/// Add one sample for each disk for which `figure` returns a value.
fn by_drive(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&DriveEndurance) -> Option<f64>) {
    for endurance in &snapshot.endurance {
        if let Some(value) = figure(endurance) {
            samples.real(&[("disk", &endurance.disk.to_string())], value);
        }
    }
}

/// Families of index logs, recovery and endurance.
pub(super) const FAMILIES: &[Family] = &[
    disk_figure!(
        gauge,
        "kvtide_disk_recovery_seconds",
        "Time that the start took to read the index log.",
        real | disk | disk.log.recovery.took_us as f64 * 1e-6
    ),
    disk_figure!(gauge, "kvtide_disk_recovered_records", "Records that the start read from the index log.", |disk| {
        disk.log.recovery.records
    }),
    disk_figure!(gauge, "kvtide_disk_recovered_blocks", "Blocks of earlier runs that the start found.", |disk| {
        disk.log.recovery.blocks
    }),
    Family::gauge(
        "kvtide_disk_recovery_findings",
        "Entries of the index log that the start could not use, by kind.",
        |snapshot, samples| {
            each(snapshot, samples, |disk, number, samples| {
                for (finding, count) in findings(&disk.log.recovery) {
                    samples.whole(&[("disk", number), ("finding", finding)], count);
                }
            });
        },
    ),
    disk_figure!(
        gauge,
        "kvtide_disk_log_limit_bytes",
        "Maximum bytes of the index log: the size of one of its two halves.",
        |disk| { disk.log.half_bytes }
    ),
    Family::gauge("kvtide_disk_log_bytes", "Bytes of the index log, by state.", |snapshot, samples| {
        each(snapshot, samples, |disk, number, samples| {
            samples.whole(&[("disk", number), ("state", "live")], disk.log.live_bytes);
            let dead = disk.log.used_bytes.saturating_sub(disk.log.live_bytes);
            samples.whole(&[("disk", number), ("state", "dead")], dead);
        });
    }),
    disk_figure!(gauge, "kvtide_disk_log_blocks", "Blocks recorded in the index log.", |disk| disk.log.blocks),
    disk_figure!(gauge, "kvtide_disk_log_slabs", "Slabs recorded in the index log.", |disk| disk.log.slabs.into()),
    Family::counter("kvtide_disk_log_records", "Records written to the index log, by kind.", |snapshot, samples| {
        each(snapshot, samples, |disk, number, samples| {
            samples.whole(&[("disk", number), ("kind", "put")], disk.log.puts);
            samples.whole(&[("disk", number), ("kind", "erase")], disk.log.erases);
        });
    }),
    disk_figure!(counter, "kvtide_disk_log_compactions", "Compactions of the index log.", |disk| {
        disk.log.compactions
    }),
    disk_figure!(counter, "kvtide_disk_log_flushes", "Flushes of the device cache.", |disk| { disk.log.flushes }),
    disk_figure!(
        counter,
        "kvtide_disk_log_full",
        "Records and grants rejected because the index log was full.",
        |disk| { disk.log.full }
    ),
    disk_figure!(
        counter,
        "kvtide_disk_log_refusals",
        "Records that the index log rejected for another reason than lack of space.",
        |disk| disk.log.refused
    ),
    disk_figure!(
        counter,
        "kvtide_disk_log_damage",
        "Damaged batches that compactions found in the index log.",
        |disk| disk.log.corrupt
    ),
    disk_figure!(gauge, "kvtide_disk_log_waiting", "Log requests waiting to be written or flushed.", |disk| {
        disk.log.waiting
    }),
    disk_figure!(
        gauge,
        "kvtide_disk_log_inside_seconds",
        "Duration of the index log's device call in progress; 0 if there is none.",
        real | disk | disk.log.inside_us as f64 * 1e-6
    ),
    Family::counter(
        "kvtide_disk_device_written_bytes",
        "Bytes written to the device since the daemon started, by kind.",
        |snapshot, samples| {
            each(snapshot, samples, |disk, number, samples| {
                for (kind, bytes) in written(disk) {
                    samples.whole(&[("disk", number), ("kind", kind)], bytes);
                }
            });
        },
    ),
    disk_figure!(gauge, "kvtide_disk_earlier_written_bytes", "Bytes that earlier runs wrote to the disk.", |disk| {
        earlier(disk)
    }),
    disk_figure!(
        counter,
        "kvtide_disk_page_written_bytes",
        "Bytes of pages written, before compression and before rounding to sectors.",
        |disk| disk.written.page_bytes
    ),
    Family::gauge(
        "kvtide_disk_write_amplification",
        "Bytes written to the device for each byte of a page, since the daemon started.",
        |snapshot, samples| by_disk_real(snapshot, samples, |disk| disk.write_amplification()),
    ),
    disk_figure!(counter, "kvtide_disk_discarded_bytes", "Bytes of the device discarded.", |disk| {
        disk.log.discarded_bytes
    }),
    Family::gauge(
        "kvtide_disk_day_limit_bytes",
        "Maximum bytes written to a disk in a day; absent if unlimited.",
        |snapshot, samples| by_drive(snapshot, samples, |endurance| endurance.bytes_per_day.map(|bytes| bytes as f64)),
    ),
    Family::gauge(
        "kvtide_disk_endurance_bytes",
        "Rated endurance of a disk; absent if not configured.",
        |snapshot, samples| {
            by_drive(snapshot, samples, |endurance| endurance.endurance_bytes.map(|bytes| bytes as f64))
        },
    ),
    Family::gauge(
        "kvtide_disk_life_seconds",
        "Time until the endurance of a disk is used up at the present rate; absent if unknown.",
        |snapshot, samples| by_drive(snapshot, samples, |endurance| endurance.life_s),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_nvme::WrittenStatus;

    #[test]
    fn what_earlier_runs_wrote_is_the_rest() {
        let written = WrittenStatus { request_bytes: 5, ..WrittenStatus::default() };
        let disk = DiskStatus { written, written_ever_bytes: 75, ..DiskStatus::default() };
        assert_eq!(earlier(&disk), 70);
        assert_eq!(earlier(&DiskStatus { written_ever_bytes: 5, ..disk }), 0);
    }
}

//! What a disk remembers and how it wears: its index log, what the start found in it, what was written and what that leaves.

use super::disk::{by_disk_real, disk_figure, each};
use super::family::{Family, Samples};
use crate::io::{DiskStatus, RecoveryReport};
use crate::status::{Snapshot, Wear};

/// What a start found amiss, by what it is.
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

/// Bytes that went to the device since the start, by what they were for.
fn written(disk: &DiskStatus) -> [(&'static str, u64); 4] {
    [
        ("pages", disk.written.request_bytes),
        ("records", disk.log.appended_bytes),
        ("compaction", disk.log.compacted_bytes),
        ("superblock", disk.written.superblock_bytes),
    ]
}

/// Of the bytes written in the store's life, those that earlier runs wrote.
fn earlier(disk: &DiskStatus) -> u64 {
    let now: u64 = written(disk).iter().map(|(_, bytes)| bytes).sum();
    disk.written_ever_bytes.saturating_sub(now)
}

/// One sample a disk that has the figure.
fn by_wear(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&Wear) -> Option<f64>) {
    for wear in &snapshot.wear {
        if let Some(value) = figure(wear) {
            samples.real(&[("disk", &wear.disk.to_string())], value);
        }
    }
}

/// The table.
pub(super) const FAMILIES: &[Family] = &[
    disk_figure!(
        gauge,
        "kvtide_disk_recovery_seconds",
        "How long the start took to read the index log.",
        real | disk | disk.log.recovery.took_us as f64 * 1e-6
    ),
    disk_figure!(gauge, "kvtide_disk_recovered_records", "Records that the start read.", |disk| {
        disk.log.recovery.records
    }),
    disk_figure!(gauge, "kvtide_disk_recovered_blocks", "Blocks of earlier runs that the start found.", |disk| {
        disk.log.recovery.blocks
    }),
    Family::gauge(
        "kvtide_disk_recovery_findings",
        "What the start found in the index log that it could not use, by what it is.",
        |snapshot, samples| {
            each(snapshot, samples, |disk, number, samples| {
                for (finding, count) in findings(&disk.log.recovery) {
                    samples.whole(&[("disk", number), ("finding", finding)], count);
                }
            });
        },
    ),
    disk_figure!(gauge, "kvtide_disk_log_limit_bytes", "Bytes that the index log may take.", |disk| {
        disk.log.half_bytes
    }),
    Family::gauge("kvtide_disk_log_bytes", "Bytes of the index log, by what is in them.", |snapshot, samples| {
        each(snapshot, samples, |disk, number, samples| {
            samples.whole(&[("disk", number), ("state", "live")], disk.log.live_bytes);
            let dead = disk.log.used_bytes.saturating_sub(disk.log.live_bytes);
            samples.whole(&[("disk", number), ("state", "dead")], dead);
        });
    }),
    disk_figure!(gauge, "kvtide_disk_log_blocks", "Blocks that the index log holds.", |disk| disk.log.blocks),
    disk_figure!(gauge, "kvtide_disk_log_slabs", "Slabs that the index log holds.", |disk| disk.log.slabs.into()),
    Family::counter("kvtide_disk_log_records", "Records of blocks written to the index log.", |snapshot, samples| {
        each(snapshot, samples, |disk, number, samples| {
            samples.whole(&[("disk", number), ("kind", "put")], disk.log.puts);
            samples.whole(&[("disk", number), ("kind", "erase")], disk.log.erases);
        });
    }),
    disk_figure!(counter, "kvtide_disk_log_compactions", "Times the index log was written anew.", |disk| {
        disk.log.compactions
    }),
    disk_figure!(counter, "kvtide_disk_log_flushes", "Times the device was asked to flush its cache.", |disk| {
        disk.log.flushes
    }),
    disk_figure!(counter, "kvtide_disk_log_full", "Records and grants that the index log had no room for.", |disk| {
        disk.log.full
    }),
    disk_figure!(
        counter,
        "kvtide_disk_log_refusals",
        "Records that the index log refused for another reason than room.",
        |disk| disk.log.refused
    ),
    disk_figure!(
        counter,
        "kvtide_disk_log_damage",
        "Batches of the index log that a compaction found not to be what was written.",
        |disk| disk.log.corrupt
    ),
    disk_figure!(gauge, "kvtide_disk_log_waiting", "Records that wait to be written or flushed.", |disk| {
        disk.log.waiting
    }),
    disk_figure!(
        gauge,
        "kvtide_disk_log_inside_seconds",
        "How long the index log has waited for the device by now.",
        real | disk | disk.log.inside_us as f64 * 1e-6
    ),
    Family::counter(
        "kvtide_disk_device_written_bytes",
        "Bytes written to the device since the start, by what they were for.",
        |snapshot, samples| {
            each(snapshot, samples, |disk, number, samples| {
                for (kind, bytes) in written(disk) {
                    samples.whole(&[("disk", number), ("kind", kind)], bytes);
                }
            });
        },
    ),
    disk_figure!(gauge, "kvtide_disk_earlier_written_bytes", "Bytes that earlier runs wrote.", |disk| earlier(disk)),
    disk_figure!(
        counter,
        "kvtide_disk_page_written_bytes",
        "Bytes of pages that were written, before rounding to sectors.",
        |disk| disk.written.page_bytes
    ),
    Family::gauge(
        "kvtide_disk_write_amplification",
        "Bytes written to the device for each byte of a page, since the start.",
        |snapshot, samples| by_disk_real(snapshot, samples, |disk| disk.write_amplification()),
    ),
    disk_figure!(counter, "kvtide_disk_discarded_bytes", "Bytes that the device was told that nobody needs.", |disk| {
        disk.log.discarded_bytes
    }),
    Family::gauge(
        "kvtide_disk_day_limit_bytes",
        "Bytes that may be written to a disk in a day; not there if nothing bounds it.",
        |snapshot, samples| by_wear(snapshot, samples, |wear| wear.bytes_per_day.map(|bytes| bytes as f64)),
    ),
    Family::gauge(
        "kvtide_disk_endurance_bytes",
        "Bytes that a disk is rated for in its life; not there if nobody told.",
        |snapshot, samples| by_wear(snapshot, samples, |wear| wear.endurance_bytes.map(|bytes| bytes as f64)),
    ),
    Family::gauge(
        "kvtide_disk_life_seconds",
        "Until a disk's endurance is used up, at the rate since the start; not there while that cannot be told.",
        |snapshot, samples| by_wear(snapshot, samples, |wear| wear.life_s),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::WrittenStatus;

    #[test]
    fn what_earlier_runs_wrote_is_the_rest() {
        let written = WrittenStatus { request_bytes: 5, ..WrittenStatus::default() };
        let disk = DiskStatus { written, written_ever_bytes: 75, ..DiskStatus::default() };
        assert_eq!(earlier(&disk), 70);
        assert_eq!(earlier(&DiskStatus { written_ever_bytes: 5, ..disk }), 0);
    }
}

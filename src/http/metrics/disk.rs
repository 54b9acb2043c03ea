//! Disks of the NVMe tier: how fast, how full, how well.

use super::family::{Family, Samples};
use crate::histogram::Histogram;
use crate::io::{ClassStatus, DiskStatus, WayStatus};
use crate::status::Snapshot;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Names of a disk's classes, in its order.
const CLASS_NAMES: [&str; 3] = ["demand", "prefetch", "write_back"];

/// What disks fail with: a failing device, a full file system, one that went read-only.
const EXPECTED: [i32; 3] = [libc::EIO, libc::ENOSPC, libc::EROFS];

/// Calls `sample` for each disk with its label.
pub(super) fn each(snapshot: &Snapshot, samples: &mut Samples, sample: impl Fn(&DiskStatus, &str, &mut Samples)) {
    for disk in &snapshot.disks {
        sample(disk, &disk.number.to_string(), samples);
    }
}

/// One sample a class of a disk.
fn by_class(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&ClassStatus) -> u64) {
    each(snapshot, samples, |disk, number, samples| {
        for (name, class) in CLASS_NAMES.into_iter().zip(&disk.classes) {
            samples.whole(&[("disk", number), ("class", name)], figure(class));
        }
    });
}

/// Reads and writes of each class.
fn both_ways(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&WayStatus) -> u64) {
    each(snapshot, samples, |disk, number, samples| {
        for (name, class) in CLASS_NAMES.into_iter().zip(&disk.classes) {
            for (operation, way) in [("read", &class.reads), ("write", &class.writes)] {
                samples.whole(&[("disk", number), ("class", name), ("operation", operation)], figure(way));
            }
        }
    });
}

/// Latencies of reads and writes of each class.
fn spreads(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&WayStatus) -> &Histogram) {
    each(snapshot, samples, |disk, number, samples| {
        for (name, class) in CLASS_NAMES.into_iter().zip(&disk.classes) {
            for (operation, way) in [("read", &class.reads), ("write", &class.writes)] {
                samples.spread(&[("disk", number), ("class", name), ("operation", operation)], figure(way));
            }
        }
    });
}

/// One sample for each disk that has the figure.
pub(super) fn by_disk_real(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&DiskStatus) -> Option<f64>) {
    each(snapshot, samples, |disk, number, samples| {
        if let Some(value) = figure(disk) {
            samples.real(&[("disk", number)], value);
        }
    });
}

/// A figure of a disk that needs no label of its own.
macro_rules! disk_figure {
    ($kind:ident, $name:literal, $help:literal, real $figure:expr) => {
        Family::$kind($name, $help, |snapshot, samples| {
            let figure: fn(&crate::io::DiskStatus) -> f64 = $figure;
            each(snapshot, samples, |disk, number, samples| samples.real(&[("disk", number)], figure(disk)));
        })
    };
    ($kind:ident, $name:literal, $help:literal, $figure:expr) => {
        Family::$kind($name, $help, |snapshot, samples| {
            let figure: fn(&crate::io::DiskStatus) -> u64 = $figure;
            each(snapshot, samples, |disk, number, samples| samples.whole(&[("disk", number)], figure(disk)));
        })
    };
}

pub(super) use disk_figure;

/// The name of an error number, for those that disks give; others by number. 0 is a request that the device ended short.
/// Any number may come: nothing here may panic, since a scrape shows every disk.
fn errno_name(number: i32) -> Cow<'static, str> {
    Cow::Borrowed(match number {
        0 => "short",
        libc::EIO => "EIO",
        libc::ENOSPC => "ENOSPC",
        libc::EDQUOT => "EDQUOT",
        libc::EROFS => "EROFS",
        libc::ENODEV => "ENODEV",
        libc::ENXIO => "ENXIO",
        libc::EINVAL => "EINVAL",
        libc::ENOMEM => "ENOMEM",
        libc::EAGAIN => "EAGAIN",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EFAULT => "EFAULT",
        libc::EBADF => "EBADF",
        libc::EFBIG => "EFBIG",
        libc::ECANCELED => "ECANCELED",
        libc::EPERM => "EPERM",
        libc::ESHUTDOWN => "ESHUTDOWN",
        // Errors of the kernel's block layer: the medium, the target, the link, protection data.
        libc::ENODATA => "ENODATA",
        libc::EREMOTEIO => "EREMOTEIO",
        libc::ENOLINK => "ENOLINK",
        libc::EILSEQ => "EILSEQ",
        _ => return Cow::Owned(number.to_string()),
    })
}

/// The table.
pub(super) const FAMILIES: &[Family] = &[
    Family::gauge("kvtide_disk_info", "How a disk's bytes move, and where it is; always 1.", |snapshot, samples| {
        each(snapshot, samples, |disk, number, samples| {
            let dir = disk.dir.to_string_lossy();
            samples.whole(&[("disk", number), ("dir", &dir), ("mode", &disk.mode)], 1);
        });
    }),
    disk_figure!(gauge, "kvtide_disk_capacity_bytes", "Bytes of all regions of a disk.", |disk| disk.capacity_bytes),
    disk_figure!(gauge, "kvtide_disk_regions", "Regions of a disk.", |disk| disk.regions.into()),
    disk_figure!(gauge, "kvtide_disk_stalled", "1 while a request has been at the device for too long.", |disk| {
        disk.stalled.into()
    }),
    disk_figure!(
        gauge,
        "kvtide_disk_stalled_requests",
        "Requests at the device for longer than the timeout.",
        |disk| { disk.stalled_requests.into() }
    ),
    disk_figure!(
        gauge,
        "kvtide_disk_oldest_request_seconds",
        "How long the device has had the oldest of its requests.",
        real | disk | disk.oldest_us as f64 * 1e-6
    ),
    disk_figure!(
        gauge,
        "kvtide_disk_out_of_service",
        "1 once a disk was taken out of service, or if it was not there at the start: nothing is granted or written there.",
        |disk| disk.out_of_service.is_some().into()
    ),
    Family::gauge("kvtide_disk_queued_transfers", "Transfers that wait for their turn.", |snapshot, samples| {
        by_class(snapshot, samples, |class| class.queued);
    }),
    Family::gauge("kvtide_disk_active_transfers", "Transfers at the device.", |snapshot, samples| {
        by_class(snapshot, samples, |class| class.at_device);
    }),
    disk_figure!(gauge, "kvtide_disk_ring_depth", "Requests at the device now.", |disk| disk.at_device.into()),
    disk_figure!(gauge, "kvtide_disk_ring_depth_limit", "Requests that may be there at once.", |disk| disk
        .depth
        .into()),
    disk_figure!(gauge, "kvtide_disk_write_back_bytes", "Bytes of write-back at the device.", |disk| {
        disk.writeback_bytes
    }),
    disk_figure!(
        gauge,
        "kvtide_disk_write_back_limit_bytes",
        "Bytes of write-back that may be at the device now; less while reads suffer from it.",
        |disk| disk.writeback_cap_bytes
    ),
    disk_figure!(gauge, "kvtide_disk_registered_bytes", "Host memory registered with the ring.", |disk| {
        disk.registered_bytes
    }),
    disk_figure!(
        gauge,
        "kvtide_disk_unregistered_bytes",
        "Host memory that could not be registered: its transfers cost more processor time.",
        |disk| disk.unregistered_bytes
    ),
    disk_figure!(counter, "kvtide_disk_filled_writes", "Writes that had to read their sectors first.", |disk| disk
        .filled),
    Family::counter("kvtide_disk_transfers", "Transfers that ended well.", |snapshot, samples| {
        both_ways(snapshot, samples, |way| way.transfers);
    }),
    Family::counter("kvtide_disk_bytes", "Bytes of transfers that ended well.", |snapshot, samples| {
        both_ways(snapshot, samples, |way| way.bytes);
    }),
    Family::counter("kvtide_disk_transfer_failures", "Transfers that failed.", |snapshot, samples| {
        both_ways(snapshot, samples, |way| way.failed);
    }),
    Family::counter(
        "kvtide_disk_transfer_timeouts",
        "Transfers that were never begun in time.",
        |snapshot, samples| {
            both_ways(snapshot, samples, |way| way.timed_out);
        },
    ),
    Family::counter(
        "kvtide_disk_errors",
        "Requests that failed, by errno; errno=\"short\": the device ended them short.",
        |snapshot, samples| {
            each(snapshot, samples, |disk, number, samples| {
                // Those that alarms are made of stand there before they happen: a rate needs a zero to begin with.
                let mut errors = BTreeMap::from(EXPECTED.map(|errno| (errno, 0)));
                errors.extend(&disk.errors);
                for (errno, count) in errors {
                    samples.whole(&[("disk", number), ("errno", &errno_name(errno))], count);
                }
            });
        },
    ),
    disk_figure!(
        counter,
        "kvtide_disk_short_completions",
        "Requests that fell short and were taken up again.",
        |disk| { disk.short }
    ),
    disk_figure!(counter, "kvtide_disk_checksum_failures", "Pages read that are not what was written.", |disk| disk
        .checksum_failures),
    disk_figure!(
        counter,
        "kvtide_disk_staged_transfers",
        "Transfers that went through the disk thread's own memory.",
        |disk| disk.staged
    ),
    disk_figure!(
        gauge,
        "kvtide_disk_written_today_bytes",
        "Bytes written since midnight UTC, or since the start if that was later.",
        |disk| disk.written_today_bytes
    ),
    disk_figure!(counter, "kvtide_disk_written_bytes", "Bytes written in the life of the disk's store.", |disk| {
        disk.written_ever_bytes
    }),
    Family::histogram("kvtide_disk_wait_seconds", "How long transfers waited for their turn.", |snapshot, samples| {
        spreads(snapshot, samples, |way| &way.waited);
    }),
    Family::histogram("kvtide_disk_device_seconds", "How long the device had transfers.", |snapshot, samples| {
        spreads(snapshot, samples, |way| &way.device);
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_names_that_operators_know() {
        assert_eq!(errno_name(5), "EIO");
        assert_eq!(errno_name(28), "ENOSPC");
        assert_eq!(errno_name(30), "EROFS");
        assert_eq!(errno_name(1234), "1234");
    }

    #[test]
    fn any_error_number_is_exported() {
        let numbers = [i32::MIN, -5, -1, 0, 5, 41, 133, 4095, 4096, 65_536, i32::MAX];
        let errors = numbers.into_iter().map(|number| (number, 2)).collect();
        let disks = vec![DiskStatus { errors, ..DiskStatus::default() }];
        let page = crate::http::metrics::render(Snapshot { disks, ..Snapshot::empty() }.into()).unwrap();
        for label in ["short", "EIO", "41", "133", "-1", "-5", "4095", "4096", "65536", "-2147483648", "2147483647"] {
            let line = format!("kvtide_disk_errors_total{{disk=\"0\",errno=\"{label}\"}} 2\n");
            assert!(page.contains(&line), "{line} is not in:\n{page}");
        }
    }
}

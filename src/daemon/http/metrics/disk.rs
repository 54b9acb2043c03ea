//! I/O metrics of the disks of the NVMe tier: load, latency, errors, memory registration.

use super::family::{Family, Samples};
use crate::status::Snapshot;
use kvtide_nvme::{ClassStatus, DiskStatus, WayStatus};
use kvtide_rt::histogram::Histogram;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Label values of a disk's I/O classes, in the order of [`DiskStatus::classes`].
const CLASS_NAMES: [&str; 3] = ["demand", "prefetch", "write_back"];

/// Errors exported with 0 before they occur: a failing device, a full file system, a read-only file system.
const EXPECTED: [i32; 3] = [libc::EIO, libc::ENOSPC, libc::EROFS];

/// Call `sample` for each disk with the disk's label value.
pub(super) fn each(snapshot: &Snapshot, samples: &mut Samples, sample: impl Fn(&DiskStatus, &str, &mut Samples)) {
    for disk in &snapshot.disks {
        sample(disk, &disk.number.to_string(), samples);
    }
}

/// Add one sample for each disk and class.
fn by_class(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&ClassStatus) -> u64) {
    each(snapshot, samples, |disk, number, samples| {
        for (name, class) in CLASS_NAMES.into_iter().zip(&disk.classes) {
            samples.whole(&[("disk", number), ("class", name)], figure(class));
        }
    });
}

/// Add one sample for each disk, class and operation.
fn both_ways(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&WayStatus) -> u64) {
    each(snapshot, samples, |disk, number, samples| {
        for (name, class) in CLASS_NAMES.into_iter().zip(&disk.classes) {
            for (operation, way) in [("read", &class.reads), ("write", &class.writes)] {
                samples.whole(&[("disk", number), ("class", name), ("operation", operation)], figure(way));
            }
        }
    });
}

/// Add one histogram for each disk, class and operation.
fn spreads(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&WayStatus) -> &Histogram) {
    each(snapshot, samples, |disk, number, samples| {
        for (name, class) in CLASS_NAMES.into_iter().zip(&disk.classes) {
            for (operation, way) in [("read", &class.reads), ("write", &class.writes)] {
                samples.spread(&[("disk", number), ("class", name), ("operation", operation)], figure(way));
            }
        }
    });
}

/// Add one sample for each disk for which `figure` returns a value.
pub(super) fn by_disk_real(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&DiskStatus) -> Option<f64>) {
    each(snapshot, samples, |disk, number, samples| {
        if let Some(value) = figure(disk) {
            samples.real(&[("disk", number)], value);
        }
    });
}

/// Define a family with the disk as its only label.
macro_rules! disk_figure {
    ($kind:ident, $name:literal, $help:literal, real $figure:expr) => {
        Family::$kind($name, $help, |snapshot, samples| {
            let figure: fn(&kvtide_nvme::DiskStatus) -> f64 = $figure;
            each(snapshot, samples, |disk, number, samples| samples.real(&[("disk", number)], figure(disk)));
        })
    };
    ($kind:ident, $name:literal, $help:literal, $figure:expr) => {
        Family::$kind($name, $help, |snapshot, samples| {
            let figure: fn(&kvtide_nvme::DiskStatus) -> u64 = $figure;
            each(snapshot, samples, |disk, number, samples| samples.whole(&[("disk", number)], figure(disk)));
        })
    };
}

pub(super) use disk_figure;

/// Return the label value of an error number: the symbolic name of an error that disks return, else the number.
///
/// 0 means that the device moved fewer bytes than requested. The number can have any value, and one scrape covers all disks:
/// this function must not panic.
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
        // Errors of the kernel's block layer: medium, target, link, protection data.
        libc::ENODATA => "ENODATA",
        libc::EREMOTEIO => "EREMOTEIO",
        libc::ENOLINK => "ENOLINK",
        libc::EILSEQ => "EILSEQ",
        _ => return Cow::Owned(number.to_string()),
    })
}

/// Families of disks.
pub(super) const FAMILIES: &[Family] = &[
    Family::gauge("kvtide_disk_info", "Directory and I/O mode of a disk, in labels; always 1.", |snapshot, samples| {
        each(snapshot, samples, |disk, number, samples| {
            let dir = disk.dir.to_string_lossy();
            samples.whole(&[("disk", number), ("dir", &dir), ("mode", &disk.mode)], 1);
        });
    }),
    disk_figure!(gauge, "kvtide_disk_capacity_bytes", "Capacity of a disk: the bytes of all its regions.", |disk| disk
        .capacity_bytes),
    disk_figure!(gauge, "kvtide_disk_regions", "Regions of a disk.", |disk| disk.regions.into()),
    disk_figure!(
        gauge,
        "kvtide_disk_stalled",
        "Stall state: 1 while the device holds a request for longer than tiers.nvme.timeout_ms.",
        |disk| { disk.stalled.into() }
    ),
    disk_figure!(
        gauge,
        "kvtide_disk_stalled_requests",
        "Requests at the device for longer than tiers.nvme.timeout_ms.",
        |disk| { disk.stalled_requests.into() }
    ),
    disk_figure!(
        gauge,
        "kvtide_disk_oldest_request_seconds",
        "Age of the oldest request at the device.",
        real | disk | disk.oldest_us as f64 * 1e-6
    ),
    disk_figure!(
        gauge,
        "kvtide_disk_out_of_service",
        "Service state: 1 if the disk is out of service; it gets no new regions and no writes.",
        |disk| disk.out_of_service.is_some().into()
    ),
    Family::gauge("kvtide_disk_queued_transfers", "Transfers waiting in the I/O scheduler.", |snapshot, samples| {
        by_class(snapshot, samples, |class| class.queued);
    }),
    Family::gauge("kvtide_disk_active_transfers", "Transfers in flight at the device.", |snapshot, samples| {
        by_class(snapshot, samples, |class| class.at_device);
    }),
    disk_figure!(gauge, "kvtide_disk_ring_depth", "Requests in flight at the device.", |disk| disk.at_device.into()),
    disk_figure!(gauge, "kvtide_disk_ring_depth_limit", "Maximum requests in flight at the device.", |disk| disk
        .depth
        .into()),
    disk_figure!(gauge, "kvtide_disk_write_back_bytes", "Bytes of write-back in flight at the device.", |disk| {
        disk.writeback_bytes
    }),
    disk_figure!(
        gauge,
        "kvtide_disk_write_back_limit_bytes",
        "Current maximum of write-back bytes in flight; lowered while write-back slows demand reads.",
        |disk| disk.writeback_cap_bytes
    ),
    disk_figure!(gauge, "kvtide_disk_registered_bytes", "Host memory registered with io_uring.", |disk| {
        disk.registered_bytes
    }),
    disk_figure!(
        gauge,
        "kvtide_disk_unregistered_bytes",
        "Host memory that could not be registered with io_uring; its transfers cost more CPU time.",
        |disk| disk.unregistered_bytes
    ),
    disk_figure!(
        counter,
        "kvtide_disk_filled_writes",
        "Writes that had to read their sectors first (read-modify-write).",
        |disk| disk.filled
    ),
    Family::counter("kvtide_disk_transfers", "Transfers completed.", |snapshot, samples| {
        both_ways(snapshot, samples, |way| way.transfers);
    }),
    Family::counter("kvtide_disk_bytes", "Bytes of completed transfers.", |snapshot, samples| {
        both_ways(snapshot, samples, |way| way.bytes);
    }),
    Family::counter("kvtide_disk_transfer_failures", "Transfers failed.", |snapshot, samples| {
        both_ways(snapshot, samples, |way| way.failed);
    }),
    Family::counter(
        "kvtide_disk_transfer_timeouts",
        "Transfers given up because they did not start before the timeout.",
        |snapshot, samples| {
            both_ways(snapshot, samples, |way| way.timed_out);
        },
    ),
    Family::counter(
        "kvtide_disk_errors",
        "Requests failed, by errno; errno=\"short\": the device moved fewer bytes than requested.",
        |snapshot, samples| {
            each(snapshot, samples, |disk, number, samples| {
                // Export 0 before the first error: `increase` in an alert rule needs a sample before the error to see it.
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
        "Requests completed in part; the rest was requested again.",
        |disk| { disk.short }
    ),
    disk_figure!(counter, "kvtide_disk_checksum_failures", "Pages read with a wrong checksum.", |disk| disk
        .checksum_failures),
    disk_figure!(
        counter,
        "kvtide_disk_staged_transfers",
        "Requests that went through the disk thread's staging buffers.",
        |disk| disk.staged
    ),
    disk_figure!(
        gauge,
        "kvtide_disk_written_today_bytes",
        "Bytes written since midnight UTC, or since the daemon started if that was later.",
        |disk| disk.written_today_bytes
    ),
    disk_figure!(counter, "kvtide_disk_written_bytes", "Bytes written over the life of the disk's store.", |disk| {
        disk.written_ever_bytes
    }),
    Family::histogram(
        "kvtide_disk_wait_seconds",
        "Time that transfers waited in the I/O scheduler.",
        |snapshot, samples| {
            spreads(snapshot, samples, |way| &way.waited);
        },
    ),
    Family::histogram("kvtide_disk_device_seconds", "Time that transfers spent at the device.", |snapshot, samples| {
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
        let snapshot = Snapshot { disks, ..Snapshot::empty() };
        let page = crate::http::metrics::render(&snapshot, crate::http::metrics::Format::Prometheus);
        for label in ["short", "EIO", "41", "133", "-1", "-5", "4095", "4096", "65536", "-2147483648", "2147483647"] {
            let line = format!("kvtide_disk_errors_total{{disk=\"0\",errno=\"{label}\"}} 2\n");
            assert!(page.contains(&line), "{line} is not in:\n{page}");
        }
    }
}

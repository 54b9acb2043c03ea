//! Metrics of resources that spaces share: host memory and disk capacity.

use super::family::{Family, Samples};
use crate::status::Snapshot;
use kvtide_tiering::node::DiskStatus;

/// Add one sample for each disk from the allocation state of its regions.
fn by_disk(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&DiskStatus, u64) -> u64) {
    let Some(host) = &snapshot.host else { return };
    for (number, disk) in host.disks.iter().enumerate() {
        samples.whole(&[("disk", &number.to_string())], figure(disk, host.region_bytes));
    }
}

/// Families of host memory and disk capacity.
pub(super) const FAMILIES: &[Family] = &[
    Family::gauge("kvtide_host_capacity_bytes", "Host memory configured.", |snapshot, samples| {
        if let Some(host) = &snapshot.host {
            samples.whole(&[], host.capacity_bytes);
        }
    }),
    Family::gauge("kvtide_host_granted_bytes", "Host memory granted to spaces.", |snapshot, samples| {
        if let Some(host) = &snapshot.host {
            samples.whole(&[], host.granted_bytes);
        }
    }),
    Family::gauge(
        "kvtide_host_pooled_bytes",
        "Host memory allocated at start and not granted yet.",
        |snapshot, samples| {
            if let Some(host) = &snapshot.host {
                samples.whole(&[], host.pooled_bytes);
            }
        },
    ),
    Family::gauge(
        "kvtide_host_allocating_bytes",
        "Host memory that is being allocated, at start and for what spaces returned.",
        |snapshot, samples| {
            if let Some(host) = &snapshot.host {
                samples.whole(&[], host.allocating_bytes);
            }
        },
    ),
    Family::gauge(
        "kvtide_host_huge_bytes",
        "Granted and pooled host memory that is on huge pages.",
        |snapshot, samples| {
            if let Some(host) = &snapshot.host {
                samples.whole(&[], host.huge_bytes);
            }
        },
    ),
    Family::gauge("kvtide_disk_granted_bytes", "Bytes of a disk granted to spaces.", |snapshot, samples| {
        by_disk(snapshot, samples, |disk, region_bytes| u64::from(disk.granted) * region_bytes);
    }),
    Family::gauge(
        "kvtide_disk_lost_bytes",
        "Bytes of a disk leaked until restart: their space ended with transfers possibly in flight.",
        |snapshot, samples| by_disk(snapshot, samples, |disk, region_bytes| u64::from(disk.lost) * region_bytes),
    ),
    Family::gauge(
        "kvtide_disk_unclaimed_bytes",
        "Bytes of a disk that hold blocks of an earlier run and that no space has claimed.",
        |snapshot, samples| by_disk(snapshot, samples, |disk, region_bytes| u64::from(disk.unclaimed) * region_bytes),
    ),
    Family::counter("kvtide_host_grants", "Slabs of host memory granted.", |snapshot, samples| {
        if let Some(host) = &snapshot.host {
            samples.whole(&[], host.slabs_granted);
        }
    }),
    Family::counter(
        "kvtide_host_refusals",
        "Requests for host memory refused because the tier or a quota was used up.",
        |snapshot, samples| {
            if let Some(host) = &snapshot.host {
                samples.whole(&[], host.slabs_refused);
            }
        },
    ),
    Family::counter(
        "kvtide_host_grants_elsewhere",
        "Slabs granted on another NUMA node than that of their engine.",
        |snapshot, samples| {
            if let Some(host) = &snapshot.host {
                samples.whole(&[], host.slabs_elsewhere);
            }
        },
    ),
];

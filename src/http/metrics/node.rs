//! What spaces share: host memory, and room on disks.

use super::family::{Family, Samples};
use crate::status::Snapshot;
use kvtide_tiering::node::DiskStatus;

/// One sample a disk, of what the node knows of it.
fn by_disk(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&DiskStatus, u64) -> u64) {
    let Some(host) = &snapshot.host else { return };
    for (number, disk) in host.disks.iter().enumerate() {
        samples.whole(&[("disk", &number.to_string())], figure(disk, host.region_bytes));
    }
}

/// The table.
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
        "Host memory that was taken at the start and that no space has asked for yet.",
        |snapshot, samples| {
            if let Some(host) = &snapshot.host {
                samples.whole(&[], host.pooled_bytes);
            }
        },
    ),
    Family::gauge("kvtide_disk_granted_bytes", "Room on a disk that spaces hold.", |snapshot, samples| {
        by_disk(snapshot, samples, |disk, region_bytes| u64::from(disk.granted) * region_bytes);
    }),
    Family::gauge(
        "kvtide_disk_lost_bytes",
        "Room on a disk that a space left behind with transfers perhaps in flight; nobody gets it until a restart.",
        |snapshot, samples| by_disk(snapshot, samples, |disk, region_bytes| u64::from(disk.lost) * region_bytes),
    ),
    Family::gauge(
        "kvtide_disk_kept_bytes",
        "Room on a disk that holds what an earlier run left and whose space has not come.",
        |snapshot, samples| by_disk(snapshot, samples, |disk, region_bytes| u64::from(disk.kept) * region_bytes),
    ),
    Family::counter("kvtide_host_grants", "Slabs of host memory granted.", |snapshot, samples| {
        if let Some(host) = &snapshot.host {
            samples.whole(&[], host.slabs_granted);
        }
    }),
    Family::counter(
        "kvtide_host_refusals",
        "Times a space asked for host memory and nothing was left for it.",
        |snapshot, samples| {
            if let Some(host) = &snapshot.host {
                samples.whole(&[], host.slabs_refused);
            }
        },
    ),
];

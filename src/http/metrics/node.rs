//! What spaces share: host memory.

use super::family::Family;

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

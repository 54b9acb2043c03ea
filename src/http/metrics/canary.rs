//! The canary: pages whose bytes were compared with those that an engine stored.

use super::disk;
use super::family::{Family, Samples};
use super::space;
use crate::io::DiskStatus;
use crate::space::CanaryTally;
use crate::status::Snapshot;

/// One sample for what each space's engines loaded, and one for what was about to be written to each disk.
fn by_place(
    snapshot: &Snapshot,
    samples: &mut Samples,
    loaded: fn(&CanaryTally) -> u64,
    written: fn(&DiskStatus) -> u64,
) {
    space::each(snapshot, samples, |space, of| of.whole(&[("where", "load")], loaded(&space.canary)));
    disk::each(snapshot, samples, |disk, number, samples| {
        samples.whole(&[("where", "write"), ("disk", number)], written(disk));
    });
}

/// The table.
pub(super) const FAMILIES: &[Family] = &[
    Family::counter(
        "kvtide_canary_checked",
        "Pages whose bytes were compared with what an engine had stored, by where.",
        |snapshot, samples| by_place(snapshot, samples, |tally| tally.checked, |disk| disk.canary_checked),
    ),
    Family::counter(
        "kvtide_canary_failed",
        "Of those, pages that were not what had been stored; they were not served.",
        |snapshot, samples| by_place(snapshot, samples, |tally| tally.failed, |disk| disk.canary_failed),
    ),
];

//! Metrics of the integrity sample: pages that were compared with the bytes that the engine stored.

use super::family::{Family, Samples};
use super::space;
use crate::space::SampleStats;
use crate::status::Snapshot;

/// Add one sample for checks after loads and one for checks before writes to NVMe.
fn by_place(snapshot: &Snapshot, samples: &mut Samples, figures: fn(&SampleStats) -> (u64, u64)) {
    space::each(snapshot, samples, |space, of| {
        let (load, write) = figures(&space.sample);
        of.whole(&[("where", "load")], load);
        of.whole(&[("where", "write")], write);
    });
}

/// Families of the integrity sample.
pub(super) const FAMILIES: &[Family] = &[
    Family::counter(
        "kvtide_canary_checked",
        "Pages compared with the bytes that the engine stored, by place of the check.",
        |snapshot, samples| by_place(snapshot, samples, |stats| (stats.checked, stats.written_checked)),
    ),
    Family::counter(
        "kvtide_canary_failed",
        "Pages that differed from the bytes that the engine stored; they were not served.",
        |snapshot, samples| by_place(snapshot, samples, |stats| (stats.failed, stats.written_failed)),
    ),
];

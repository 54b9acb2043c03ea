//! The canary: pages whose bytes were compared with those that an engine stored.

use super::family::{Family, Samples};
use super::space;
use crate::space::CanaryTally;
use crate::status::Snapshot;

/// One sample for what engines loaded, and one for what was about to be written to NVMe.
fn by_place(snapshot: &Snapshot, samples: &mut Samples, figures: fn(&CanaryTally) -> (u64, u64)) {
    space::each(snapshot, samples, |space, of| {
        let (load, write) = figures(&space.canary);
        of.whole(&[("where", "load")], load);
        of.whole(&[("where", "write")], write);
    });
}

/// The table.
pub(super) const FAMILIES: &[Family] = &[
    Family::counter(
        "kvtide_canary_checked",
        "Pages whose bytes were compared with what an engine had stored, by where.",
        |snapshot, samples| by_place(snapshot, samples, |tally| (tally.checked, tally.written_checked)),
    ),
    Family::counter(
        "kvtide_canary_failed",
        "Of those, pages that were not what had been stored; they were not served.",
        |snapshot, samples| by_place(snapshot, samples, |tally| (tally.failed, tally.written_failed)),
    ),
];

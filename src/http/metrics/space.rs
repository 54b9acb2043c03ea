//! Spaces: where pages were found, what moved and why, who waited.

use super::family::{Family, Samples};
use crate::space::SpaceStatus;
use crate::status::Snapshot;
use kvtide_tiering::{Edge, REASONS};

/// Names of `kvtide_tiering::Reason`, in its order.
const REASON_NAMES: [&str; REASONS] = ["demand", "step", "prefetch", "request", "clean", "park", "copy"];

/// Calls `sample` for each space with its labels after `first`.
fn each(snapshot: &Snapshot, samples: &mut Samples, sample: impl Fn(&SpaceStatus, &mut Of<'_>)) {
    for space in &snapshot.spaces {
        let number = space.space.to_string();
        let common = [("space", number.as_str()), ("name", space.name.as_str()), ("domain", space.domain.as_str())];
        sample(space, &mut Of { samples, common });
    }
}

/// The samples of one space.
struct Of<'a> {
    samples: &'a mut Samples,
    common: [(&'static str, &'a str); 3],
}

impl Of<'_> {
    fn whole(&mut self, own: &[(&'static str, &str)], value: u64) {
        self.samples.whole(&[own, &self.common].concat(), value);
    }
}

/// A counter of the core's that needs no label of its own.
macro_rules! core_counter {
    ($name:literal, $help:literal, $field:ident) => {
        Family::counter($name, $help, |snapshot, samples| {
            each(snapshot, samples, |space, of| of.whole(&[], space.core.$field));
        })
    };
}

/// Every edge with its ends.
fn edges(space: &SpaceStatus) -> [(&'static str, &'static str, &Edge); 3] {
    [
        ("host", "tier0", &space.core.host_to_tier0),
        ("tier0", "host", &space.core.tier0_to_host),
        ("tier0", "tier0", &space.core.tier0_to_tier0),
    ]
}

/// One sample an edge and reason.
fn by_reason(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&Edge) -> &[u64; REASONS]) {
    each(snapshot, samples, |space, of| {
        for (source, destination, edge) in edges(space) {
            for (reason, count) in REASON_NAMES.into_iter().zip(figure(edge)) {
                of.whole(&[("source", source), ("destination", destination), ("reason", reason)], *count);
            }
        }
    });
}

/// The table.
pub(super) const FAMILIES: &[Family] = &[
    Family::gauge(
        "kvtide_sessions",
        "Sessions, live or lingering until their process has exited.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("state", "live")], space.sessions as u64);
                of.whole(&[("state", "lingering")], space.lingering as u64);
            });
        },
    ),
    Family::counter(
        "kvtide_page_requests",
        "Pages that an announced step needed, by the tier in which they were found.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("tier", "tier0")], space.core.found_tier0);
                of.whole(&[("tier", "host")], space.core.found_host);
                of.whole(&[("tier", "none")], space.core.found_nowhere);
            });
        },
    ),
    Family::counter("kvtide_migrations", "Pages that moved, by where from, where to and why.", |snapshot, samples| {
        by_reason(snapshot, samples, |edge| &edge.pages)
    }),
    Family::counter(
        "kvtide_migration_bytes",
        "Bytes of pages that moved, by where from, where to and why.",
        |snapshot, samples| by_reason(snapshot, samples, |edge| &edge.bytes),
    ),
    Family::counter(
        "kvtide_migration_failures",
        "Transfers that failed, fell short or were cancelled.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                for (source, destination, edge) in edges(space) {
                    of.whole(&[("source", source), ("destination", destination)], edge.failed);
                }
            });
        },
    ),
    Family::gauge("kvtide_frames", "Frames by tier and state.", |snapshot, samples| {
        each(snapshot, samples, |space, of| {
            let full = &space.occupancy;
            let host_idle = full.host_frames.saturating_sub(full.host_frames_used + full.host_frames_quarantined);
            of.whole(&[("tier", "tier0"), ("state", "used")], full.tier0_frames_used);
            of.whole(&[("tier", "tier0"), ("state", "free")], full.tier0_frames.saturating_sub(full.tier0_frames_used));
            of.whole(&[("tier", "host"), ("state", "used")], full.host_frames_used);
            of.whole(&[("tier", "host"), ("state", "quarantined")], full.host_frames_quarantined);
            of.whole(&[("tier", "host"), ("state", "free")], host_idle);
        });
    }),
    Family::gauge("kvtide_blocks", "Blocks in use, those on their way out included.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.blocks.into()));
    }),
    Family::gauge("kvtide_blocks_limit", "Blocks that the space may have.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.blocks_max.into()));
    }),
    Family::gauge("kvtide_published_blocks", "Contents that a map can find.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.published.into()));
    }),
    Family::gauge("kvtide_slab_bytes", "Host memory that the space holds.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.slab_bytes));
    }),
    core_counter!("kvtide_evictions", "Pages that lost their tier-0 frame to another page.", evictions),
    core_counter!("kvtide_exclusive_drops", "Host copies dropped because the page is in tier 0 too.", exclusive_drops),
    core_counter!("kvtide_cache_drops", "Published blocks dropped from the last tier.", cache_drops),
    core_counter!("kvtide_retired_pages", "Pages that left their window.", retired),
    core_counter!("kvtide_page_transitions", "Times a page's residency changed.", transitions),
    core_counter!("kvtide_faults", "Page faults of lanes.", faults),
    core_counter!("kvtide_resident_faults", "Faults whose page was there when they arrived.", faults_resident),
    core_counter!("kvtide_stalls", "Requests that had to wait for frames or capacity.", stalls),
    core_counter!("kvtide_requests", "Requests of engines.", requests),
    core_counter!("kvtide_request_failures", "Requests that ended with another status than Ok.", requests_failed),
    core_counter!("kvtide_request_timeouts", "Requests that passed their deadline.", timed_out),
    core_counter!("kvtide_request_cancellations", "Requests that were cancelled.", canceled),
    core_counter!("kvtide_jobs", "Jobs sent to agents.", jobs),
    core_counter!("kvtide_job_refusals", "Jobs that an agent answered with Busy.", jobs_busy),
    core_counter!("kvtide_job_retries", "Jobs that failed and were sent again.", jobs_retried),
    core_counter!("kvtide_job_cancellations", "Jobs that the core cancelled.", jobs_canceled),
    core_counter!(
        "kvtide_quarantines",
        "Host frames set aside because a lost session might still write them.",
        quarantined_total
    ),
    core_counter!("kvtide_lost_pages", "Pages that existed nowhere else and are lost.", pages_lost),
    core_counter!("kvtide_blocks_published", "Blocks that were published.", published),
    core_counter!("kvtide_blocks_mapped", "Published blocks that a map attached.", mapped),
];

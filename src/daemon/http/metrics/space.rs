//! Metrics of spaces: hits and misses, page moves, waiting, capacity, caching.

use super::family::{Family, Samples};
use crate::session::RequestTimes;
use crate::space::SpaceStatus;
use crate::status::Snapshot;
use kvtide_rt::histogram::Histogram;
use kvtide_tiering::{Amount, BudgetReport, Edge, Fill, REASONS};

/// Label values of `kvtide_tiering::Reason`, in its order.
const REASON_NAMES: [&str; REASONS] =
    ["demand", "step", "prefetch", "request", "clean", "park", "copy", "resize", "attention", "intent"];

/// Call `sample` for each space with a collector that appends the space's labels.
pub(super) fn each(snapshot: &Snapshot, samples: &mut Samples, sample: impl Fn(&SpaceStatus, &mut Of<'_>)) {
    for space in &snapshot.spaces {
        let number = space.space.to_string();
        let common = [("space", number.as_str()), ("name", space.name.as_str()), ("domain", space.domain.as_str())];
        sample(space, &mut Of { samples, common });
    }
}

/// Collector of one space's samples: appends the labels `space`, `name` and `domain`.
pub(super) struct Of<'a> {
    samples: &'a mut Samples,
    common: [(&'static str, &'a str); 3],
}

impl Of<'_> {
    pub fn whole(&mut self, own: &[(&'static str, &str)], value: u64) {
        self.samples.whole(&[own, &self.common].concat(), value);
    }

    fn seconds(&mut self, own: &[(&'static str, &str)], value_us: u64) {
        self.samples.real(&[own, &self.common].concat(), value_us as f64 * 1e-6);
    }

    /// Add a ratio if it is known.
    fn share(&mut self, own: &[(&'static str, &str)], value: Option<f64>) {
        if let Some(value) = value {
            self.samples.real(&[own, &self.common].concat(), value);
        }
    }

    fn spread(&mut self, own: &[(&'static str, &str)], histogram: &Histogram) {
        self.samples.spread(&[own, &self.common].concat(), histogram);
    }
}

/// Define a family that exports one counter of the core for each space.
macro_rules! core_counter {
    ($name:literal, $help:literal, $field:ident) => {
        Family::counter($name, $help, |snapshot, samples| {
            each(snapshot, samples, |space, of| of.whole(&[], space.core.$field));
        })
    };
}

/// Return the edges between tiers with their source and destination.
fn edges(space: &SpaceStatus) -> [(&'static str, &'static str, &Edge); 5] {
    [
        ("nvme", "host", &space.core.nvme_to_host),
        ("host", "nvme", &space.core.host_to_nvme),
        ("host", "tier0", &space.core.host_to_tier0),
        ("tier0", "host", &space.core.tier0_to_host),
        ("tier0", "tier0", &space.core.tier0_to_tier0),
    ]
}

/// Add one sample for each edge and reason.
fn by_reason(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&Edge) -> &[u64; REASONS]) {
    each(snapshot, samples, |space, of| {
        for (source, destination, edge) in edges(space) {
            for (reason, count) in REASON_NAMES.into_iter().zip(figure(edge)) {
                of.whole(&[("source", source), ("destination", destination), ("reason", reason)], *count);
            }
        }
    });
}

/// Add one sample for each tier and state.
fn by_state(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&Amount) -> u64) {
    each(snapshot, samples, |space, of| {
        let full = &space.occupancy;
        for (tier, fill) in [("tier0", full.tier0), ("host", full.host)] {
            let Fill { free, clean, dirty, pinned, busy, quarantined } = fill;
            for (state, amount) in [("free", free), ("clean", clean), ("dirty", dirty), ("busy", busy)] {
                of.whole(&[("tier", tier), ("state", state)], figure(&amount));
            }
            // Pinned pages are in tier 0 only, quarantined frames in host memory only.
            let (state, amount) = if tier == "tier0" { ("pinned", pinned) } else { ("quarantined", quarantined) };
            of.whole(&[("tier", tier), ("state", state)], figure(&amount));
        }
        let taken = full.nvme_slots_used + full.nvme_slots_awaiting_erasure + full.nvme_slots_bad;
        for (state, slots) in [
            ("free", full.nvme_slots.saturating_sub(taken)),
            ("used", full.nvme_slots_used.saturating_sub(full.nvme_slots_index_only)),
            ("cold", full.nvme_slots_index_only),
            ("limbo", full.nvme_slots_awaiting_erasure),
            ("bad", full.nvme_slots_bad),
        ] {
            let slots = u64::from(slots);
            let amount = Amount { frames: slots * u64::from(full.planes), bytes: slots * full.nvme_slot_bytes };
            of.whole(&[("tier", "nvme"), ("state", state)], figure(&amount));
        }
    });
}

/// Return the durations of requests by label value.
fn request_times(space: &SpaceStatus) -> [(&'static str, &Histogram); 13] {
    let RequestTimes { fault, step, acquire, resume, reserve, map, publish, lookup, lease, load, store, fetch, other } =
        &space.request_times;
    [
        ("fault", fault),
        ("step", step),
        ("acquire", acquire),
        ("resume", resume),
        ("reserve", reserve),
        ("map", map),
        ("publish", publish),
        ("lookup", lookup),
        ("lease", lease),
        ("load", load),
        ("store", store),
        ("fetch", fetch),
        ("other", other),
    ]
}

/// Families of spaces.
pub(super) const FAMILIES: &[Family] = &[
    Family::gauge(
        "kvtide_sessions",
        "Sessions by state: live, or lingering (disconnected, process still alive).",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("state", "live")], space.sessions as u64);
                of.whole(&[("state", "lingering")], space.waiting_for_exit as u64);
            });
        },
    ),
    Family::counter(
        "kvtide_page_requests",
        "Pages needed by announced steps, by the tier that held them.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("tier", "tier0")], space.core.found_tier0);
                of.whole(&[("tier", "host")], space.core.found_host);
                of.whole(&[("tier", "nvme")], space.core.found_nvme);
                of.whole(&[("tier", "none")], space.core.found_nowhere);
            });
        },
    ),
    Family::counter("kvtide_migrations", "Pages moved, by source, destination and reason.", |snapshot, samples| {
        by_reason(snapshot, samples, |edge| &edge.pages)
    }),
    Family::counter(
        "kvtide_migration_bytes",
        "Bytes of pages moved, by source, destination and reason.",
        |snapshot, samples| by_reason(snapshot, samples, |edge| &edge.bytes),
    ),
    Family::counter(
        "kvtide_migration_failures",
        "Page transfers that failed, fell short or were cancelled.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                for (source, destination, edge) in edges(space) {
                    of.whole(&[("source", source), ("destination", destination)], edge.failed);
                }
            });
        },
    ),
    Family::gauge("kvtide_pages", "Capacity of a tier in pages, by state.", |snapshot, samples| {
        by_state(snapshot, samples, |amount| amount.frames);
    }),
    Family::gauge("kvtide_bytes", "Capacity of a tier in bytes, by state.", |snapshot, samples| {
        by_state(snapshot, samples, |amount| amount.bytes);
    }),
    Family::gauge("kvtide_pins", "Ranges acquired by engines and not released.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.pins));
    }),
    Family::gauge(
        "kvtide_transfers_in_flight",
        "Transfers in flight between host memory and NVMe.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| of.whole(&[], space.transfers as u64));
        },
    ),
    Family::gauge("kvtide_requests_in_flight", "Requests waiting for a completion.", |snapshot, samples| {
        each(snapshot, samples, |space, of| {
            of.whole(&[], space.attached.iter().map(|session| session.requests_in_flight).sum());
        });
    }),
    Family::gauge("kvtide_jobs_in_flight", "Jobs in progress at agents.", |snapshot, samples| {
        each(snapshot, samples, |space, of| {
            of.whole(&[], space.attached.iter().map(|session| session.jobs_in_flight).sum());
        });
    }),
    Family::histogram("kvtide_request_seconds", "Duration of requests, by operation.", |snapshot, samples| {
        each(snapshot, samples, |space, of| {
            for (operation, histogram) in request_times(space) {
                of.spread(&[("operation", operation)], histogram);
            }
        });
    }),
    Family::counter("kvtide_stall_seconds", "Time that lanes waited for missing pages.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.seconds(&[], space.request_times.fault.sum_us));
    }),
    Family::histogram(
        "kvtide_job_seconds",
        "Duration of page copies by agents, from sending the job to its completion.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                let times = &space.job_times;
                of.spread(&[("source", "host"), ("destination", "tier0")], &times.load);
                of.spread(&[("source", "tier0"), ("destination", "host")], &times.store);
                of.spread(&[("source", "tier0"), ("destination", "tier0")], &times.copy);
            });
        },
    ),
    Family::gauge("kvtide_blocks", "Blocks in use, including those being freed.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.blocks.into()));
    }),
    Family::gauge("kvtide_blocks_limit", "Maximum blocks of the space.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.blocks_max.into()));
    }),
    Family::gauge("kvtide_guaranteed_blocks", "Blocks guaranteed to sessions.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.blocks_guaranteed.into()));
    }),
    Family::gauge("kvtide_published_blocks", "Cached blocks.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.published.into()));
    }),
    Family::gauge(
        "kvtide_cold_contents",
        "Cached blocks that are only on NVMe: one index entry and one slot each, nothing in memory.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.index_only.into()));
        },
    ),
    core_counter!(
        "kvtide_loaded_blocks",
        "Blocks copied from the cache into engines' own memory: hits of the block API.",
        blocks_loaded
    ),
    core_counter!(
        "kvtide_expired_contents",
        "Cached blocks dropped because they were unused for eviction.ttl_s.",
        expired
    ),
    Family::gauge(
        "kvtide_ghost_hit_ratio",
        "Hit ratio that each policy would reach at the present size, estimated by a sampled ghost cache.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                for (policy, hits) in space.eviction.policies {
                    of.share(&[("policy", policy.name())], hits);
                }
            });
        },
    ),
    Family::gauge(
        "kvtide_ghost_size_hit_ratio",
        "Hit ratio that the active policy would reach at other sizes, estimated by sampled ghost caches.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                let sizes = ["all/4", "all/2", "all*2", "all*4", "host", "host*2"];
                for (size, point) in sizes.into_iter().zip(space.eviction.curve) {
                    of.share(&[("size", size)], point.hits);
                }
            });
        },
    ),
    Family::gauge("kvtide_eviction_policy", "Eviction policy in use, in a label; always 1.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[("policy", space.eviction.follow.name())], 1));
    }),
    Family::gauge(
        "kvtide_keeping_blocks",
        "Published blocks being written to NVMe and recorded in its index log.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.persisting.into()));
        },
    ),
    Family::gauge(
        "kvtide_notes_in_flight",
        "Records, erasures and flushes waiting for an index log.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.log_requests.into()));
        },
    ),
    Family::counter(
        "kvtide_restored_blocks",
        "Blocks of earlier runs handled when their space came back, by outcome.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("outcome", "restored")], space.core.restored);
                of.whole(&[("outcome", "unreachable")], space.stats.unreachable);
                let refused = space.core.restore_refused.saturating_sub(space.stats.unreachable);
                of.whole(&[("outcome", "refused")], refused);
            });
        },
    ),
    Family::gauge("kvtide_slab_bytes", "Host memory held by the space.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.slab_bytes));
    }),
    Family::counter(
        "kvtide_evictions",
        "Pages evicted from a tier to make room for another page.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("tier", "tier0")], space.core.evictions);
                of.whole(&[("tier", "host")], space.core.host_evictions);
            });
        },
    ),
    Family::counter(
        "kvtide_prefetched_pages",
        "Pages read from NVMe ahead of use, by outcome.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("outcome", "used")], space.core.prefetch_used);
                of.whole(&[("outcome", "late")], space.core.prefetch_late);
                of.whole(&[("outcome", "wasted")], space.core.prefetch_wasted);
            });
        },
    ),
    Family::counter(
        "kvtide_attention_pages",
        "Pages loaded into tier 0 because a prediction of attention named them, by outcome.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("outcome", "used")], space.core.attention_used);
                of.whole(&[("outcome", "late")], space.core.attention_late);
                of.whole(&[("outcome", "wasted")], space.core.attention_wasted);
                of.whole(&[("outcome", "canceled")], space.core.attention_canceled);
            });
        },
    ),
    core_counter!(
        "kvtide_attention_loads",
        "Loads into tier 0 started because of a prediction of attention.",
        attention_loads
    ),
    core_counter!(
        "kvtide_attention_held",
        "Predicted pages not loaded for lack of bandwidth or of a frame.",
        attention_held
    ),
    Family::counter(
        "kvtide_queued_pages",
        "Pages that parked sequences with a due time needed when they were resumed, by outcome.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("outcome", "used")], space.core.scheduled_used);
                of.whole(&[("outcome", "late")], space.core.scheduled_late);
                of.whole(&[("outcome", "missed")], space.core.scheduled_missed);
                of.whole(&[("outcome", "wasted")], space.core.scheduled_wasted);
            });
        },
    ),
    core_counter!("kvtide_queued_loads", "Loads into tier 0 for parked sequences with a due time.", scheduled_loads),
    core_counter!(
        "kvtide_queued_held",
        "Delays of loads for parked sequences because no frame could be taken.",
        scheduled_held
    ),
    core_counter!("kvtide_scores", "Score entries accepted.", scores),
    core_counter!("kvtide_scores_refused", "Score entries rejected as invalid.", scores_refused),
    core_counter!(
        "kvtide_scores_late",
        "Score entries ignored because their step was over or they repeat an earlier entry.",
        scores_late
    ),
    core_counter!(
        "kvtide_transfer_failures",
        "Transfers between host memory and NVMe failed by the device.",
        io_failed
    ),
    core_counter!("kvtide_transfer_retries", "Page reads from NVMe that failed and were retried.", io_retries),
    core_counter!("kvtide_checksum_failures", "Pages read from NVMe with a wrong checksum.", checksum_failed),
    core_counter!(
        "kvtide_nvme_drops",
        "Cached blocks dropped because NVMe was full or above its high watermark.",
        nvme_drops
    ),
    core_counter!("kvtide_exclusive_drops", "Host copies dropped because tier 0 holds the page too.", exclusive_drops),
    core_counter!(
        "kvtide_shown_in_place",
        "Pages mapped in place in host memory instead of being copied to tier 0.",
        shown_in_place
    ),
    core_counter!(
        "kvtide_windows_shed",
        "Pages unmapped from mapped frames because host memory was short.",
        pages_unmapped
    ),
    core_counter!("kvtide_leases_expired", "Leases on cached blocks that expired.", leases_expired),
    core_counter!("kvtide_cache_drops", "Cached blocks dropped from the last tier.", cache_drops),
    core_counter!(
        "kvtide_retired_pages",
        "Pages discarded for good because they left their attention window or ranked too low.",
        pages_discarded
    ),
    core_counter!("kvtide_page_transitions", "Changes of page residency.", transitions),
    core_counter!("kvtide_faults", "Page faults of lanes.", faults),
    core_counter!(
        "kvtide_resident_faults",
        "Page faults whose page was resident when the fault arrived.",
        faults_resident
    ),
    core_counter!("kvtide_stalls", "Requests that waited for page frames or capacity.", stalls),
    core_counter!("kvtide_requests", "Requests received from engines.", requests),
    core_counter!("kvtide_request_failures", "Requests completed with a status other than Ok.", requests_failed),
    core_counter!("kvtide_request_timeouts", "Requests that passed their deadline.", timed_out),
    core_counter!("kvtide_request_cancellations", "Requests cancelled.", canceled),
    core_counter!("kvtide_jobs", "Jobs sent to agents.", jobs),
    Family::counter("kvtide_tier0_resizes", "Resizes of a session's tier 0, by outcome.", |snapshot, samples| {
        each(snapshot, samples, |space, of| {
            of.whole(&[("outcome", "grown")], space.core.tier0_grown);
            of.whole(&[("outcome", "shrunk")], space.core.tier0_shrunk);
            of.whole(&[("outcome", "not_shrunk")], space.core.tier0_shrinks_failed);
        });
    }),
    Family::counter(
        "kvtide_tier0_resized_pages",
        "Pages displaced by a shrinking tier 0, by outcome.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("outcome", "evicted")], space.core.resize_evictions);
                of.whole(&[("outcome", "moved")], space.core.resize_moves);
            });
        },
    ),
    core_counter!("kvtide_job_refusals", "Jobs that an agent answered with Busy.", jobs_busy),
    core_counter!("kvtide_job_retries", "Jobs that failed and were sent again.", jobs_retried),
    core_counter!("kvtide_job_cancellations", "Jobs cancelled by the daemon.", jobs_canceled),
    core_counter!(
        "kvtide_quarantines",
        "Host frames quarantined because a lost session or a late copy may still use them.",
        quarantined_total
    ),
    core_counter!("kvtide_lost_pages", "Pages lost: no tier held a copy any more.", pages_lost),
    core_counter!("kvtide_blocks_published", "Blocks published.", published),
    Family::counter(
        "kvtide_unreadable_pages",
        "Pages read from NVMe with wrong content, by cause.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("kind", "corrupt")], space.nvme.corrupt);
                of.whole(&[("kind", "lost_unflushed")], space.nvme.lost_unflushed);
            });
        },
    ),
    Family::gauge(
        "kvtide_write_budget_bytes",
        "NVMe write budget of the space, by share; absent if unlimited.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                let BudgetReport { bytes_per_day, left_bytes, committed_bytes, debt_bytes, .. } = space.budget;
                if bytes_per_day > 0 {
                    of.whole(&[("share", "day")], bytes_per_day);
                    of.whole(&[("share", "left")], left_bytes);
                    of.whole(&[("share", "promised")], committed_bytes);
                    of.whole(&[("share", "debt")], debt_bytes);
                }
            });
        },
    ),
    Family::counter("kvtide_admission_looks", "NVMe admission decisions, by outcome.", |snapshot, samples| {
        each(snapshot, samples, |space, of| {
            of.whole(&[("outcome", "admitted")], space.core.admitted);
            of.whole(&[("outcome", "unworthy")], space.core.refused_unworthy);
            of.whole(&[("outcome", "over_budget")], space.core.refused_budget);
        });
    }),
    Family::counter(
        "kvtide_admission_bytes",
        "Bytes written to NVMe, by whether admission had reserved them.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("outcome", "admitted")], space.core.nvme_bytes_admitted);
                of.whole(&[("outcome", "forced")], space.core.nvme_bytes_forced);
            });
        },
    ),
    core_counter!(
        "kvtide_refused_drops",
        "Blocks dropped from host memory that NVMe admission had rejected.",
        refused_dropped
    ),
    core_counter!(
        "kvtide_over_budget_drops",
        "Blocks dropped unwritten that a larger bytes_per_day would have saved.",
        over_budget_drops
    ),
    core_counter!(
        "kvtide_over_budget_drop_bytes",
        "Bytes of blocks dropped unwritten that a larger bytes_per_day would have saved.",
        over_budget_drop_bytes
    ),
    core_counter!("kvtide_unwritten_drops", "Blocks dropped before their write to NVMe was complete.", unwritten_drops),
    core_counter!(
        "kvtide_unwritten_drop_bytes",
        "Bytes of blocks dropped before their write to NVMe was complete.",
        unwritten_drop_bytes
    ),
    core_counter!("kvtide_second_touches", "Cached blocks used a second time.", second_uses),
    core_counter!("kvtide_nvme_hits", "Cached blocks attached that were only on NVMe.", nvme_hits),
    core_counter!(
        "kvtide_spilled_runs",
        "Blocks stored on another disk than the rest of their prefix chain.",
        chains_overflowed
    ),
    core_counter!("kvtide_blocks_stored", "Blocks recorded on NVMe: they survive the end of the daemon.", stored),
    core_counter!("kvtide_blocks_durable", "Blocks reported durable: they survive a power cut.", durable),
    core_counter!("kvtide_records", "Records accepted by index logs.", records),
    core_counter!("kvtide_record_failures", "Records rejected by index logs.", records_failed),
    core_counter!("kvtide_erases", "Erasures accepted by index logs.", erases),
    core_counter!("kvtide_erase_failures", "Erasures rejected by index logs.", erases_failed),
    core_counter!("kvtide_flushes", "Flushes of index logs completed, including failed ones.", flushes),
    core_counter!("kvtide_flush_failures", "Flushes of index logs failed.", flushes_failed),
    core_counter!(
        "kvtide_corrupt_contents",
        "Cached blocks dropped because one of their pages could not be read back from NVMe.",
        entries_corrupt
    ),
    core_counter!(
        "kvtide_gone_contents",
        "Cached blocks dropped because their disk went out of service.",
        entries_gone
    ),
    core_counter!(
        "kvtide_cooled_blocks",
        "Unreferenced cached blocks dropped from memory and kept on NVMe.",
        blocks_dropped
    ),
    core_counter!(
        "kvtide_heated_contents",
        "Cached blocks that were only on NVMe and got a block in memory again.",
        blocks_given
    ),
    core_counter!(
        "kvtide_blocks_mapped",
        "Cached blocks attached to a sequence by a request or a lease.",
        blocks_attached
    ),
];

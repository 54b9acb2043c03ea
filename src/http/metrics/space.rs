//! Spaces: where pages were found, what moved and why, who waited.

use super::family::{Family, Samples};
use crate::histogram::Histogram;
use crate::session::RequestTimes;
use crate::space::SpaceStatus;
use crate::status::Snapshot;
use kvtide_tiering::{Amount, Edge, Endurance, Fill, REASONS};

/// Names of `kvtide_tiering::Reason`, in its order.
const REASON_NAMES: [&str; REASONS] =
    ["demand", "step", "prefetch", "request", "clean", "park", "copy", "resize", "attention", "intent"];

/// Calls `sample` for each space with its labels after `first`.
pub(super) fn each(snapshot: &Snapshot, samples: &mut Samples, sample: impl Fn(&SpaceStatus, &mut Of<'_>)) {
    for space in &snapshot.spaces {
        let number = space.space.to_string();
        let common = [("space", number.as_str()), ("name", space.name.as_str()), ("domain", space.domain.as_str())];
        sample(space, &mut Of { samples, common });
    }
}

/// The samples of one space.
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

    /// A share, if it is known.
    fn share(&mut self, own: &[(&'static str, &str)], value: Option<f64>) {
        if let Some(value) = value {
            self.samples.real(&[own, &self.common].concat(), value);
        }
    }

    fn spread(&mut self, own: &[(&'static str, &str)], histogram: &Histogram) {
        self.samples.spread(&[own, &self.common].concat(), histogram);
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
fn edges(space: &SpaceStatus) -> [(&'static str, &'static str, &Edge); 5] {
    [
        ("nvme", "host", &space.core.nvme_to_host),
        ("host", "nvme", &space.core.host_to_nvme),
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

/// Room by tier and state.
fn by_state(snapshot: &Snapshot, samples: &mut Samples, figure: fn(&Amount) -> u64) {
    each(snapshot, samples, |space, of| {
        let full = &space.occupancy;
        for (tier, fill) in [("tier0", full.tier0), ("host", full.host)] {
            let Fill { free, clean, dirty, pinned, busy, quarantined } = fill;
            for (state, amount) in [("free", free), ("clean", clean), ("dirty", dirty), ("busy", busy)] {
                of.whole(&[("tier", tier), ("state", state)], figure(&amount));
            }
            // Engines pin pages in tier 0; a lost one may still write into host memory.
            let (state, amount) = if tier == "tier0" { ("pinned", pinned) } else { ("quarantined", quarantined) };
            of.whole(&[("tier", tier), ("state", state)], figure(&amount));
        }
        let taken = full.nvme_slots_used + full.nvme_slots_limbo + full.nvme_slots_bad;
        for (state, slots) in [
            ("free", full.nvme_slots.saturating_sub(taken)),
            ("used", full.nvme_slots_used.saturating_sub(full.nvme_slots_cold)),
            ("cold", full.nvme_slots_cold),
            ("limbo", full.nvme_slots_limbo),
            ("bad", full.nvme_slots_bad),
        ] {
            let slots = u64::from(slots);
            let amount = Amount { frames: slots * u64::from(full.planes), bytes: slots * full.nvme_slot_bytes };
            of.whole(&[("tier", "nvme"), ("state", state)], figure(&amount));
        }
    });
}

/// Times of requests by operation.
fn request_times(space: &SpaceStatus) -> [(&'static str, &Histogram); 8] {
    let RequestTimes { fault, step, acquire, resume, reserve, map, publish, other } = &space.request_times;
    [
        ("fault", fault),
        ("step", step),
        ("acquire", acquire),
        ("resume", resume),
        ("reserve", reserve),
        ("map", map),
        ("publish", publish),
        ("other", other),
    ]
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
                of.whole(&[("tier", "nvme")], space.core.found_nvme);
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
    Family::gauge("kvtide_pages", "Room of a tier, in pages, by what is in it.", |snapshot, samples| {
        by_state(snapshot, samples, |amount| amount.frames);
    }),
    Family::gauge("kvtide_bytes", "Room of a tier, in bytes, by what is in it.", |snapshot, samples| {
        by_state(snapshot, samples, |amount| amount.bytes);
    }),
    Family::gauge("kvtide_pins", "Ranges that engines have acquired and not released.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.pins));
    }),
    Family::gauge(
        "kvtide_transfers_in_flight",
        "Transfers between host and NVMe on their way.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| of.whole(&[], space.transfers as u64));
        },
    ),
    Family::gauge("kvtide_requests_in_flight", "Requests that wait for an answer.", |snapshot, samples| {
        each(snapshot, samples, |space, of| {
            of.whole(&[], space.attached.iter().map(|session| session.requests_in_flight).sum());
        });
    }),
    Family::gauge("kvtide_jobs_in_flight", "Jobs that agents have not yet ended.", |snapshot, samples| {
        each(snapshot, samples, |space, of| {
            of.whole(&[], space.attached.iter().map(|session| session.jobs_in_flight).sum());
        });
    }),
    Family::histogram(
        "kvtide_request_seconds",
        "How long requests took, by what was asked for.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                for (operation, histogram) in request_times(space) {
                    of.spread(&[("operation", operation)], histogram);
                }
            });
        },
    ),
    Family::counter(
        "kvtide_stall_seconds",
        "How long lanes waited for pages that were not there.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| of.seconds(&[], space.request_times.fault.sum_us));
        },
    ),
    Family::histogram(
        "kvtide_job_seconds",
        "How long agents took for jobs that move a page, from the sending of the job.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                let times = &space.job_times;
                of.spread(&[("source", "host"), ("destination", "tier0")], &times.load);
                of.spread(&[("source", "tier0"), ("destination", "host")], &times.store);
                of.spread(&[("source", "tier0"), ("destination", "tier0")], &times.copy);
            });
        },
    ),
    Family::gauge("kvtide_blocks", "Blocks in use, those on their way out included.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.blocks.into()));
    }),
    Family::gauge("kvtide_blocks_limit", "Blocks that the space may have.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.blocks_max.into()));
    }),
    Family::gauge("kvtide_published_blocks", "Contents that a map can find.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.published.into()));
    }),
    Family::gauge(
        "kvtide_cold_contents",
        "Of those, only on NVMe: an index entry and a slot, and nothing in memory.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.cold.into()));
        },
    ),
    core_counter!(
        "kvtide_expired_contents",
        "Contents dropped because nobody had used them for the whole of the TTL.",
        expired
    ),
    Family::gauge(
        "kvtide_ghost_hit_ratio",
        "Recent uses of contents that a policy would have served from the tiers below tier 0 as they are, by its ghost cache.",
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
        "Recent uses of contents that other sizes would have served under the policy that is followed, by their ghost caches.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                let sizes = ["all/4", "all/2", "all*2", "all*4", "host", "host*2"];
                for (size, point) in sizes.into_iter().zip(space.eviction.curve) {
                    of.share(&[("size", size)], point.hits);
                }
            });
        },
    ),
    Family::gauge(
        "kvtide_eviction_policy",
        "1 for the policy that decides now which contents are given up first.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| of.whole(&[("policy", space.eviction.follow.name())], 1));
        },
    ),
    Family::gauge(
        "kvtide_keeping_blocks",
        "Published blocks on their way to NVMe and into its index log.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.keeping.into()));
        },
    ),
    Family::gauge(
        "kvtide_notes_in_flight",
        "Records, erasures and flushes that an index log has not answered.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.notes.into()));
        },
    ),
    Family::counter(
        "kvtide_restored_blocks",
        "Blocks of earlier runs that came back with their space, by what became of them.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("outcome", "restored")], space.core.restored);
                of.whole(&[("outcome", "unreachable")], space.shell.unreachable);
                let refused = space.core.restore_refused.saturating_sub(space.shell.unreachable);
                of.whole(&[("outcome", "refused")], refused);
            });
        },
    ),
    Family::gauge("kvtide_slab_bytes", "Host memory that the space holds.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.slab_bytes));
    }),
    Family::counter(
        "kvtide_evictions",
        "Pages that lost their place in a tier to another page.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("tier", "tier0")], space.core.evictions);
                of.whole(&[("tier", "host")], space.core.host_evictions);
            });
        },
    ),
    Family::counter(
        "kvtide_prefetched_pages",
        "Pages read from NVMe ahead of use, by what became of it.",
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
        "Pages loaded into tier 0 because attention was predicted to read them, by what became of it.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("outcome", "used")], space.core.attention_used);
                of.whole(&[("outcome", "late")], space.core.attention_late);
                of.whole(&[("outcome", "wasted")], space.core.attention_wasted);
                of.whole(&[("outcome", "canceled")], space.core.attention_canceled);
            });
        },
    ),
    core_counter!("kvtide_attention_loads", "Loads of pages that attention is predicted to read.", attention_loads),
    core_counter!(
        "kvtide_attention_held",
        "Such pages that were not loaded, for want of time or of a frame.",
        attention_held
    ),
    Family::counter(
        "kvtide_queued_pages",
        "Pages that sequences need which are parked and expected back, by what became of them when they were resumed.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("outcome", "used")], space.core.intent_used);
                of.whole(&[("outcome", "late")], space.core.intent_late);
                of.whole(&[("outcome", "missed")], space.core.intent_missed);
                of.whole(&[("outcome", "wasted")], space.core.intent_wasted);
            });
        },
    ),
    core_counter!("kvtide_queued_loads", "Loads into tier 0 for such sequences.", intent_loads),
    core_counter!("kvtide_queued_held", "Times that such loads waited for a frame that may be taken.", intent_held),
    core_counter!("kvtide_scores", "Entries of score areas that were taken in.", scores),
    core_counter!("kvtide_scores_refused", "Entries of score areas that cannot be true.", scores_refused),
    core_counter!("kvtide_scores_late", "Entries of score areas about a step that was over.", scores_late),
    core_counter!("kvtide_transfer_failures", "Transfers between host and NVMe that the device failed.", io_failed),
    core_counter!("kvtide_transfer_retries", "Pages whose read from NVMe failed and was tried again.", io_retries),
    core_counter!("kvtide_checksum_failures", "Pages read from NVMe that are not what was written.", checksum_failed),
    core_counter!("kvtide_nvme_drops", "Published blocks dropped because NVMe had no slot left.", nvme_drops),
    core_counter!("kvtide_exclusive_drops", "Host copies dropped because the page is in tier 0 too.", exclusive_drops),
    core_counter!(
        "kvtide_shown_in_place",
        "Pages that engines read where they are in host memory, instead of a copy.",
        shown_in_place
    ),
    core_counter!(
        "kvtide_windows_shed",
        "Pages taken out of window frames because host memory was short.",
        windows_shed
    ),
    core_counter!("kvtide_leases_expired", "Leases on cached prefixes that ended at their time.", leases_expired),
    core_counter!("kvtide_cache_drops", "Published blocks dropped from the last tier.", cache_drops),
    core_counter!("kvtide_retired_pages", "Pages that left their window, or were given up for good.", retired),
    core_counter!("kvtide_page_transitions", "Times a page's residency changed.", transitions),
    core_counter!("kvtide_faults", "Page faults of lanes.", faults),
    core_counter!("kvtide_resident_faults", "Faults whose page was there when they arrived.", faults_resident),
    core_counter!("kvtide_stalls", "Requests that had to wait for frames or capacity.", stalls),
    core_counter!("kvtide_requests", "Requests of engines.", requests),
    core_counter!("kvtide_request_failures", "Requests that ended with another status than Ok.", requests_failed),
    core_counter!("kvtide_request_timeouts", "Requests that passed their deadline.", timed_out),
    core_counter!("kvtide_request_cancellations", "Requests that were cancelled.", canceled),
    core_counter!("kvtide_jobs", "Jobs sent to agents.", jobs),
    Family::counter(
        "kvtide_tier0_resizes",
        "Times that a session's tier 0 changed its size, by which way.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("outcome", "grown")], space.core.tier0_grown);
                of.whole(&[("outcome", "shrunk")], space.core.tier0_shrunk);
                of.whole(&[("outcome", "not_shrunk")], space.core.tier0_shrinks_failed);
            });
        },
    ),
    Family::counter(
        "kvtide_tier0_resized_pages",
        "Pages that a shrinking tier 0 took the frame from, by what became of them.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("outcome", "evicted")], space.core.resize_evictions);
                of.whole(&[("outcome", "moved")], space.core.resize_moves);
            });
        },
    ),
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
    Family::counter(
        "kvtide_unreadable_pages",
        "Pages read from NVMe that are not what was written, by what that means.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("kind", "corrupt")], space.nvme.corrupt);
                of.whole(&[("kind", "lost_unflushed")], space.nvme.lost_unflushed);
            });
        },
    ),
    Family::gauge(
        "kvtide_write_budget_bytes",
        "What the space may write to NVMe in a day, by share of it; not there if nothing bounds it.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                let Endurance { bytes_per_day, left_bytes, promised_bytes, debt_bytes, .. } = space.endurance;
                if bytes_per_day > 0 {
                    of.whole(&[("share", "day")], bytes_per_day);
                    of.whole(&[("share", "left")], left_bytes);
                    of.whole(&[("share", "promised")], promised_bytes);
                    of.whole(&[("share", "debt")], debt_bytes);
                }
            });
        },
    ),
    Family::counter(
        "kvtide_admission_looks",
        "Looks at published blocks that might be written to NVMe, by what was decided.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("outcome", "admitted")], space.core.admitted);
                of.whole(&[("outcome", "unworthy")], space.core.refused_unworthy);
                of.whole(&[("outcome", "over_budget")], space.core.refused_budget);
            });
        },
    ),
    Family::counter(
        "kvtide_admission_bytes",
        "Bytes written to NVMe, by whether admission had set them aside.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("outcome", "admitted")], space.core.nvme_bytes_admitted);
                of.whole(&[("outcome", "forced")], space.core.nvme_bytes_forced);
            });
        },
    ),
    core_counter!(
        "kvtide_refused_drops",
        "Blocks dropped from host memory that were not admitted to NVMe.",
        refused_dropped
    ),
    core_counter!(
        "kvtide_over_budget_drops",
        "Blocks dropped unwritten that more bytes a day would have paid for.",
        over_budget_drops
    ),
    core_counter!(
        "kvtide_over_budget_drop_bytes",
        "Bytes of blocks dropped unwritten that more bytes a day would have paid for.",
        over_budget_drop_bytes
    ),
    core_counter!(
        "kvtide_unwritten_drops",
        "Blocks dropped on their way to NVMe, before the disks had them.",
        unwritten_drops
    ),
    core_counter!(
        "kvtide_unwritten_drop_bytes",
        "Bytes of blocks dropped on their way to NVMe, before the disks had them.",
        unwritten_drop_bytes
    ),
    core_counter!("kvtide_second_touches", "Contents that were used a second time.", second_touches),
    core_counter!("kvtide_nvme_hits", "Blocks that a map found only on NVMe.", nvme_hits),
    core_counter!(
        "kvtide_spilled_runs",
        "Blocks that took a slot on another disk than their prefix run.",
        runs_spilled
    ),
    core_counter!("kvtide_blocks_stored", "Blocks that came to survive an end of the daemon.", stored),
    core_counter!("kvtide_blocks_durable", "Blocks that were reported to survive a power cut.", durable),
    core_counter!("kvtide_records", "Records that index logs took.", records),
    core_counter!("kvtide_record_failures", "Records that index logs did not take.", records_failed),
    core_counter!("kvtide_erases", "Slots that index logs know to hold nothing again.", erases),
    core_counter!("kvtide_erase_failures", "Erasures that index logs did not take.", erases_failed),
    core_counter!("kvtide_flushes", "Flushes that ended.", flushes),
    core_counter!("kvtide_flush_failures", "Of those, flushes that failed.", flushes_failed),
    core_counter!(
        "kvtide_corrupt_contents",
        "Contents dropped because a page of them could not be read back from NVMe.",
        contents_corrupt
    ),
    core_counter!("kvtide_gone_contents", "Contents dropped because their disk went out of service.", contents_gone),
    core_counter!("kvtide_cooled_blocks", "Blocks that left memory for NVMe alone.", cooled),
    core_counter!("kvtide_heated_contents", "Contents only on NVMe that a map brought back.", heated),
    core_counter!("kvtide_blocks_mapped", "Published blocks that a map attached.", mapped),
];

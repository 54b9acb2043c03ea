//! Metrics of spaces: hits, requests, tiers, caching, integrity. At most 120 series a space; a test counts them. Figures that no alert
//! and no panel needs are in `/v1/status` only.

use super::family::{Family, Samples};
use crate::session::RequestTimes;
use crate::space::SpaceStatus;
use crate::status::Snapshot;
use kvtide_rt::histogram::Histogram;
use kvtide_tiering::{Amount, Counters, Fill};

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
        self.samples.real(&[own, &self.common].concat(), value_us as f64 / 1e6);
    }

    fn spread(&mut self, histogram: &Histogram) {
        self.samples.spread(&self.common, histogram);
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

/// Define a family that exports one figure of the occupancy for each space.
macro_rules! occupancy {
    ($name:literal, $help:literal, $field:ident) => {
        Family::gauge($name, $help, |snapshot, samples| {
            each(snapshot, samples, |space, of| of.whole(&[], space.occupancy.$field.into()));
        })
    };
}

/// Define a histogram of the durations of one operation.
macro_rules! durations {
    ($name:literal, $help:literal, $field:ident) => {
        Family::histogram($name, $help, |snapshot, samples| {
            each(snapshot, samples, |space, of| of.spread(&space.request_times.$field));
        })
    };
}

/// Return the bytes of each tier by state.
fn tier_bytes(space: &SpaceStatus) -> [(&'static str, &'static str, u64); 15] {
    let full = &space.occupancy;
    let of_tier = |fill: Fill| {
        let Fill { free, clean, dirty, pinned, busy, quarantined } = fill;
        [free, clean, dirty, busy, pinned, quarantined].map(|Amount { bytes, .. }| bytes)
    };
    // Pinned pages are in tier 0 only, quarantined frames in host memory only.
    let [free, clean, dirty, busy, pinned, _] = of_tier(full.tier0);
    let [host_free, host_clean, host_dirty, host_busy, _, quarantined] = of_tier(full.host);
    let taken = full.nvme_slots_used + full.nvme_slots_awaiting_erasure + full.nvme_slots_bad;
    let slots = |slots: u32| u64::from(slots) * full.nvme_slot_bytes;
    [
        ("tier0", "free", free),
        ("tier0", "clean", clean),
        ("tier0", "dirty", dirty),
        ("tier0", "busy", busy),
        ("tier0", "pinned", pinned),
        ("host", "free", host_free),
        ("host", "clean", host_clean),
        ("host", "dirty", host_dirty),
        ("host", "busy", host_busy),
        ("host", "quarantined", quarantined),
        ("nvme", "free", slots(full.nvme_slots.saturating_sub(taken))),
        ("nvme", "used", slots(full.nvme_slots_used.saturating_sub(full.nvme_slots_index_only))),
        ("nvme", "index_only", slots(full.nvme_slots_index_only)),
        ("nvme", "awaiting_erasure", slots(full.nvme_slots_awaiting_erasure)),
        ("nvme", "bad", slots(full.nvme_slots_bad)),
    ]
}

/// Return number and total duration in microseconds of the operations that have no histogram of their own.
fn operations(times: &RequestTimes) -> [(&'static str, u64, u64); 6] {
    let RequestTimes { step, acquire, resume, reserve, map, publish, lease, store, other, .. } = times;
    let sum = |name, histograms: &[&Histogram]| {
        let count = histograms.iter().flat_map(|histogram| histogram.buckets).sum();
        (name, count, histograms.iter().map(|histogram| histogram.sum_us).sum())
    };
    [
        sum("step", &[step]),
        sum("attach_prefix", &[map]),
        sum("publish", &[publish]),
        sum("lease", &[lease]),
        sum("store", &[store]),
        sum("other", &[acquire, resume, reserve, other]),
    ]
}

/// Return the cached blocks dropped, by cause. The core counts the first four together, and three of them once more.
fn evicted_blocks(core: &Counters) -> [(&'static str, u64); 7] {
    let named = core.nvme_drops + core.refused_dropped + core.expired;
    [
        ("memory_full", core.cache_drops.saturating_sub(named)),
        ("nvme_full", core.nvme_drops),
        ("not_admitted", core.refused_dropped),
        ("expired", core.expired),
        ("corrupt", core.entries_corrupt),
        ("disk_lost", core.entries_gone),
        ("operator", core.evicted_by_hand),
    ]
}

/// Families of spaces.
pub(super) const FAMILIES: &[Family] = &[
    Family::counter(
        "kvtide_asked_tokens",
        "Tokens of prompts that engines asked the cache for.",
        |snapshot, samples| each(snapshot, samples, |space, of| of.whole(&[], space.hits.asked_tokens)),
    ),
    Family::counter("kvtide_found_tokens", "Tokens asked for that were cached.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.whole(&[], space.hits.found_tokens));
    }),
    Family::counter(
        "kvtide_loaded_tokens",
        "Cached tokens that engines loaded instead of computing them, by the tier that held them.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                for (tier, tokens) in super::tenant::by_tier(&space.hits) {
                    of.whole(&[("tier", tier)], tokens);
                }
            });
        },
    ),
    Family::counter(
        "kvtide_recompute_saved_seconds",
        "Time that engines would have needed to compute the loaded tokens.",
        |snapshot, samples| each(snapshot, samples, |space, of| of.seconds(&[], space.hits.recompute_us)),
    ),
    Family::counter("kvtide_hit_load_seconds", "Time that loading these tokens took.", |snapshot, samples| {
        each(snapshot, samples, |space, of| of.seconds(&[], space.hits.load_us));
    }),
    Family::gauge(
        "kvtide_sessions",
        "Sessions by state: live, or waiting_for_exit (disconnected, process still alive).",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("state", "live")], space.sessions as u64);
                of.whole(&[("state", "waiting_for_exit")], space.waiting_for_exit as u64);
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
            });
        },
    ),
    Family::counter(
        "kvtide_migration_bytes",
        "Bytes of pages moved, by source and destination.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                for (source, destination, edge) in [
                    ("nvme", "host", &space.core.nvme_to_host),
                    ("host", "nvme", &space.core.host_to_nvme),
                    ("host", "tier0", &space.core.host_to_tier0),
                    ("tier0", "host", &space.core.tier0_to_host),
                    ("tier0", "tier0", &space.core.tier0_to_tier0),
                ] {
                    of.whole(&[("source", source), ("destination", destination)], edge.total_bytes());
                }
            });
        },
    ),
    Family::gauge("kvtide_tier_bytes", "Capacity that the space holds in a tier, by state.", |snapshot, samples| {
        each(snapshot, samples, |space, of| {
            for (tier, state, bytes) in tier_bytes(space) {
                of.whole(&[("tier", tier), ("state", state)], bytes);
            }
        });
    }),
    durations!("kvtide_lookup_seconds", "Duration of lookups.", lookup),
    durations!("kvtide_load_seconds", "Duration of loads of cached blocks into engines' own memory.", load),
    durations!("kvtide_fault_seconds", "Time that lanes waited for missing pages.", fault),
    Family::counter(
        "kvtide_requests",
        "Requests completed, by operation; lookups, loads and faults have histograms instead.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                for (operation, count, _) in operations(&space.request_times) {
                    of.whole(&[("operation", operation)], count);
                }
            });
        },
    ),
    Family::counter(
        "kvtide_request_seconds",
        "Total duration of these requests, by operation.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                for (operation, _, us) in operations(&space.request_times) {
                    of.seconds(&[("operation", operation)], us);
                }
            });
        },
    ),
    Family::gauge("kvtide_requests_in_flight", "Requests waiting for a completion.", |snapshot, samples| {
        each(snapshot, samples, |space, of| {
            of.whole(&[], space.attached.iter().map(|session| session.requests_in_flight).sum());
        });
    }),
    core_counter!("kvtide_request_waits", "Requests that waited for page frames or capacity.", stalls),
    core_counter!("kvtide_request_failures", "Requests completed with a status other than Ok.", requests_failed),
    occupancy!("kvtide_blocks", "Blocks in use, including those being freed.", blocks),
    occupancy!("kvtide_blocks_limit", "Maximum blocks of the space.", blocks_max),
    occupancy!("kvtide_guaranteed_blocks", "Blocks guaranteed to sessions.", blocks_guaranteed),
    occupancy!("kvtide_cached_blocks", "Cached blocks.", published),
    core_counter!("kvtide_blocks_published", "Blocks published.", published),
    core_counter!("kvtide_blocks_stored", "Blocks recorded on NVMe: they survive the end of the daemon.", stored),
    Family::counter("kvtide_evicted_blocks", "Cached blocks dropped, by cause.", |snapshot, samples| {
        each(snapshot, samples, |space, of| {
            for (cause, count) in evicted_blocks(&space.core) {
                of.whole(&[("cause", cause)], count);
            }
        });
    }),
    Family::counter(
        "kvtide_evicted_pages",
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
        "Pages loaded ahead of use, by destination and outcome.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                let core = &space.core;
                for (destination, outcome, pages) in [
                    ("host", "used", core.prefetch_used),
                    ("host", "late", core.prefetch_late),
                    ("host", "wasted", core.prefetch_wasted),
                    ("tier0", "used", core.attention_used + core.scheduled_used),
                    ("tier0", "late", core.attention_late + core.scheduled_late),
                    ("tier0", "wasted", core.attention_wasted + core.scheduled_wasted),
                ] {
                    of.whole(&[("destination", destination), ("outcome", outcome)], pages);
                }
            });
        },
    ),
    core_counter!("kvtide_lost_pages", "Pages lost: no tier held a copy any more.", pages_lost),
    core_counter!("kvtide_checksum_failures", "Pages read from NVMe with a wrong checksum.", checksum_failed),
    Family::counter(
        "kvtide_integrity_checked_pages",
        "Pages of the integrity sample compared with the bytes that the engine stored.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| of.whole(&[], space.sample.checked + space.sample.written_checked));
        },
    ),
    Family::counter(
        "kvtide_integrity_mismatches",
        "Pages that differed from the bytes that the engine stored, by place of the check; they were not served.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("where", "load")], space.sample.failed);
                of.whole(&[("where", "write")], space.sample.written_failed);
            });
        },
    ),
    core_counter!("kvtide_record_failures", "Records rejected by index logs.", records_failed),
    core_counter!("kvtide_unwritten_drops", "Blocks dropped before their write to NVMe was complete.", unwritten_drops),
    Family::gauge(
        "kvtide_over_budget_blocks",
        "Cached blocks that are not on NVMe because bytes_per_day is used up.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                if space.budget.bytes_per_day > 0 {
                    of.whole(&[], space.budget.waiting_blocks);
                }
            });
        },
    ),
    core_counter!(
        "kvtide_over_budget_drops",
        "Blocks dropped unwritten that a larger bytes_per_day would have saved.",
        over_budget_drops
    ),
    Family::counter(
        "kvtide_admission_refusals",
        "NVMe admission decisions against a block, by cause.",
        |snapshot, samples| {
            each(snapshot, samples, |space, of| {
                of.whole(&[("cause", "rarely_used")], space.core.refused_unworthy);
                of.whole(&[("cause", "over_budget")], space.core.refused_budget);
            });
        },
    ),
];

#[cfg(test)]
mod tests {
    use super::super::{Format, render};
    use super::*;
    use crate::space::SessionStatus;
    use kvtide_tiering::BudgetReport;

    /// Maximum series of one space, so that a Prometheus server affords hundreds of spaces.
    const SERIES_MAX: usize = 120;

    fn space() -> SpaceStatus {
        SpaceStatus {
            space: 3,
            name: "llama".into(),
            domain: "blue".into(),
            attached: vec![SessionStatus::default()],
            budget: BudgetReport { bytes_per_day: 1, ..BudgetReport::default() },
            ..SpaceStatus::default()
        }
    }

    #[test]
    fn a_space_makes_few_series() {
        let snapshot = Snapshot { spaces: vec![space()], ..Snapshot::empty() };
        let page = render(&snapshot, Format::Prometheus);
        let labels = "space=\"3\",name=\"llama\",domain=\"blue\"";
        let series: Vec<&str> = page.lines().filter(|line| line.contains(labels)).collect();
        assert!((100..=SERIES_MAX).contains(&series.len()), "{} series:\n{}", series.len(), series.join("\n"));
    }

    #[test]
    fn each_eviction_has_one_cause() {
        let core = Counters { cache_drops: 10, nvme_drops: 3, refused_dropped: 2, expired: 1, ..Counters::default() };
        let causes = evicted_blocks(&core);
        assert_eq!(causes[0], ("memory_full", 4));
        assert_eq!(causes.iter().map(|(_, count)| count).sum::<u64>(), core.cache_drops);
    }

    #[test]
    fn operations_without_a_histogram_are_all_counted() {
        let mut space = space();
        for op in 0..=u16::from(u8::MAX) {
            space.request_times.add(op, 2);
        }
        let with_histogram = ["lookup", "load", "fault"].len() as u64;
        let counted: u64 = operations(&space.request_times).iter().map(|(_, count, _)| count).sum();
        assert_eq!(counted, 256 - with_histogram);
        assert!(operations(&space.request_times).iter().all(|(_, count, us)| *us == 2 * count));
    }
}

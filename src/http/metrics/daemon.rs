//! The daemon as a whole: what it is, whether it is well, who came and went.

use super::family::Family;

/// The table.
pub(super) const FAMILIES: &[Family] = &[
    Family::gauge("kvtide_build_info", "Which program runs; always 1.", |snapshot, samples| {
        let build = &snapshot.build;
        let protocol = build.protocol.to_string();
        let labels = [
            ("version", build.version),
            ("protocol", protocol.as_str()),
            ("arch", build.arch),
            ("profile", build.profile),
        ];
        samples.whole(&labels, 1);
    }),
    Family::gauge("kvtide_uptime_seconds", "Seconds since the daemon began.", |snapshot, samples| {
        samples.real(&[], snapshot.uptime_s);
    }),
    Family::gauge("kvtide_healthy", "1 while nothing is wrong, as /healthz has it.", |snapshot, samples| {
        samples.whole(&[], snapshot.unhealthy.is_empty().into());
    }),
    Family::gauge(
        "kvtide_degraded",
        "Things that the daemon lacks, such as a disk or bytes a day, as /healthz has them.",
        |snapshot, samples| {
            samples.whole(&[], snapshot.degraded.len() as u64);
        },
    ),
    Family::gauge(
        "kvtide_write_budget_short",
        "1 while bytes_per_day is too low for the blocks worth writing to NVMe; /healthz has the figures.",
        |snapshot, samples| {
            samples.whole(&[], snapshot.write_budget.is_short().into());
        },
    ),
    Family::gauge("kvtide_ready", "1 while engines can attach and nothing is wrong.", |snapshot, samples| {
        samples.whole(&[], snapshot.is_ready().into());
    }),
    Family::gauge(
        "kvtide_thread_silence_seconds",
        "Time by which the next round of a thread is overdue; 0 while it goes round or sleeps.",
        |snapshot, samples| {
            for thread in &snapshot.threads {
                samples.real(&[("thread", &thread.name)], thread.silent_s);
            }
        },
    ),
    Family::gauge(
        "kvtide_snapshot_age_seconds",
        "Time since the figures of a thread were exact; 0 while they are.",
        |snapshot, samples| {
            for thread in &snapshot.threads {
                samples.real(&[("thread", &thread.name)], thread.age_s);
            }
        },
    ),
    Family::counter("kvtide_session_attaches", "Sessions that attached.", |snapshot, samples| {
        samples.whole(&[], snapshot.session_totals.attached);
    }),
    Family::counter("kvtide_session_ends", "Sessions whose lease ended, by who ended it.", |snapshot, samples| {
        let totals = &snapshot.session_totals;
        samples.whole(&[("by", "engine")], totals.ended.saturating_sub(totals.expelled));
        samples.whole(&[("by", "daemon")], totals.expelled);
    }),
    Family::counter("kvtide_attach_refusals", "Peers that were not let in.", |snapshot, samples| {
        samples.whole(&[], snapshot.session_totals.refused);
    }),
    Family::counter(
        "kvtide_http_panics",
        "Requests answered with 500 because their handler panicked.",
        |snapshot, samples| {
            samples.whole(&[], snapshot.http_totals.panics);
        },
    ),
    Family::counter(
        "kvtide_http_dropped_connections",
        "HTTP connections closed because others needed their places.",
        |snapshot, samples| {
            samples.whole(&[], snapshot.http_totals.dropped_connections);
        },
    ),
];

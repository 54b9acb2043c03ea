//! Metrics of the daemon as a whole: build, health, threads, sessions, HTTP.

use super::family::Family;

/// Families of the daemon.
pub(super) const FAMILIES: &[Family] = &[
    Family::gauge("kvtide_build_info", "Build of the running daemon, in labels; always 1.", |snapshot, samples| {
        let build = &snapshot.build;
        let protocol = build.protocol.to_string();
        let labels = [
            ("version", &*build.version),
            ("protocol", protocol.as_str()),
            ("arch", &*build.arch),
            ("profile", &*build.profile),
        ];
        samples.whole(&labels, 1);
    }),
    Family::gauge("kvtide_uptime_seconds", "Time since the daemon started.", |snapshot, samples| {
        samples.real(&[], snapshot.uptime_s);
    }),
    Family::gauge(
        "kvtide_healthy",
        "Health: 1 if the daemon is healthy, 0 if not; /healthz lists the reasons.",
        |snapshot, samples| {
            samples.whole(&[], snapshot.unhealthy.is_empty().into());
        },
    ),
    Family::gauge(
        "kvtide_degraded",
        "Number of degradations, such as a disk out of service or a short write budget; /healthz lists them.",
        |snapshot, samples| {
            samples.whole(&[], snapshot.degraded.len() as u64);
        },
    ),
    Family::gauge(
        "kvtide_write_budget_short",
        "Write budget state: 1 if bytes_per_day caused the loss of more than 1 % of the bytes to write in the last hour.",
        |snapshot, samples| {
            samples.whole(&[], snapshot.write_budget.is_short().into());
        },
    ),
    Family::gauge(
        "kvtide_ready",
        "Readiness: 1 if engines can attach and the daemon is healthy, else 0.",
        |snapshot, samples| {
            samples.whole(&[], snapshot.is_ready().into());
        },
    ),
    Family::gauge(
        "kvtide_thread_silence_seconds",
        "Time by which the next loop iteration of a thread is overdue; 0 while it runs normally or sleeps.",
        |snapshot, samples| {
            for thread in &snapshot.threads {
                samples.real(&[("thread", &thread.name)], thread.silent_s);
            }
        },
    ),
    Family::gauge(
        "kvtide_snapshot_age_seconds",
        "Age of a thread's figures; 0 if they are exact.",
        |snapshot, samples| {
            for thread in &snapshot.threads {
                samples.real(&[("thread", &thread.name)], thread.age_s);
            }
        },
    ),
    Family::counter("kvtide_session_attaches", "Sessions attached.", |snapshot, samples| {
        samples.whole(&[], snapshot.session_totals.attached);
    }),
    Family::counter("kvtide_session_ends", "Sessions ended, by the side that ended them.", |snapshot, samples| {
        let totals = &snapshot.session_totals;
        samples.whole(&[("by", "engine")], totals.ended.saturating_sub(totals.expelled));
        samples.whole(&[("by", "daemon")], totals.expelled);
    }),
    Family::counter("kvtide_attach_refusals", "Attach requests rejected.", |snapshot, samples| {
        samples.whole(&[], snapshot.session_totals.refused);
    }),
    Family::counter(
        "kvtide_http_panics",
        "HTTP requests answered with 500 because their handler panicked.",
        |snapshot, samples| {
            samples.whole(&[], snapshot.http_totals.panics);
        },
    ),
    Family::counter(
        "kvtide_http_dropped_connections",
        "HTTP connections closed because the limit on connections or descriptors was reached.",
        |snapshot, samples| {
            samples.whole(&[], snapshot.http_totals.dropped_connections);
        },
    ),
    Family::counter(
        "kvtide_http_refusals",
        "HTTP requests refused: no or a wrong operator's token, a user without rights, or another host's name.",
        |snapshot, samples| {
            samples.whole(&[], snapshot.http_totals.refused);
        },
    ),
    Family::counter("kvtide_trace_spans_exported", "Spans that the collector took.", |snapshot, samples| {
        samples.whole(&[], snapshot.trace_totals.exported);
    }),
    Family::counter(
        "kvtide_trace_spans_failed",
        "Spans lost because the collector could not be reached, was late, or refused them.",
        |snapshot, samples| {
            samples.whole(&[], snapshot.trace_totals.failed);
        },
    ),
    Family::counter(
        "kvtide_trace_spans_dropped",
        "Spans lost because the queue to the exporting thread was full.",
        |snapshot, samples| {
            samples.whole(&[], snapshot.trace_totals.dropped);
        },
    ),
];

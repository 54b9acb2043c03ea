//! An engine and a private daemon: this process and its child.
//!
//! Every figure has its own session, sized so that the sessions do not affect each other. Ratios alternate with their reference, so
//! that other load affects both.

mod copy;
mod idle;
mod resident;
mod roundtrip;

use super::engine::{Engine, PAGE_BYTES, PAGE_TOKENS, TIMEOUT, trying};
use super::report::{Report, Target};
use super::{BenchError, faults, percentile};
use crate::private_daemon::{Options as DaemonOptions, PrivateDaemon};

/// Host memory of the daemon: the pages of the largest session, and partly filled slabs.
const HOST_BYTES: u64 = 1 << 30;
/// Bytes of a slab.
const SLAB_BYTES: u64 = 64 << 20;
/// Frames of tier 0 for page faults, and pages that are read: sixteen times as many, and 64 MiB, so that host memory is not in a cache.
const FAULTS: (u32, u32) = (64, 1024);

/// Run the benchmark.
pub(super) fn measure() -> Result<Report, BenchError> {
    let options =
        DaemonOptions { host_bytes: Some(HOST_BYTES), slab_bytes: Some(SLAB_BYTES), ..DaemonOptions::default() };
    let mut daemon = PrivateDaemon::start(&options)?;
    let mut report = Report::default();
    let at_most = |most: f64| Some(Target::AtMost(most));

    let trips = roundtrip::measure(daemon.socket())?;
    report.count("noop_p50_ns", "no-op round trip, both awake, p50", trips.p50_ns, "ns", at_most(2000.0));
    report.count("noop_p99_ns", "no-op round trip, both awake, p99", trips.p99_ns, "ns", None);
    report.count("wake_p50_ns", "no-op round trip from idle, p50", trips.wake_p50_ns, "ns", at_most(80_000.0));

    let resident = resident::measure(daemon.socket())?;
    report.number("lookup_ns_per_page", "page table lookup", resident.lookup_ns, "ns/page", Target::AtMost(5.0));
    let mut faults = faults::measure(&mut daemon, FAULTS.0, FAULTS.1, false)?;
    let fault_ns = percentile(&mut faults, 50);
    report.count("fault_p50_ns", "page fault, host to tier 0, 64 KiB, p50", fault_ns, "ns", at_most(25_000.0));
    let what = "messages of a step, everything resident";
    report.count("resident_messages", what, resident.messages, "", at_most(0.0));
    let what = "agent work, everything resident";
    report.number("resident_ns_per_plane", what, resident.plane_ns, "ns/plane", Target::AtMost(1000.0));

    let idle = idle::measure(&daemon)?;
    report.number("idle_cpu_percent", "idle daemon, one session, 10 s", idle, "% of a core", Target::AtMost(0.5));

    let mut copies = copy::measure(daemon.socket())?;
    let what = "copies of 64 KiB pages ÷ memcpy";
    report.number("copy_ratio_memcpy", what, copies.ratio(), "x", Target::AtLeast(0.9));
    report.note(copies.note());
    daemon.stop()?;
    Ok(report)
}

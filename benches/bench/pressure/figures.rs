//! Figures of a row, next to their targets.

use super::fio::{Pass, over};
use super::load::{Found, Shape, Stored};
use super::percentile;
use super::probes::{Reads, Scrapes};
use super::{Report, Target};

const MIB: f64 = (1u64 << 20) as f64;

/// Results of the probes.
#[derive(Debug, Default)]
pub(super) struct Beside {
    metrics_p99_ms: f64,
    metrics_max_ms: f64,
    unanswered: u64,
    unhealthy: u64,
    lookup_p99_us: f64,
    lookups_short: u64,
    ping_p99_us: f64,
    demand_p99_us: Option<f64>,
    demand: Reads,
}

impl Beside {
    pub(super) fn of(
        mut scrapes: Scrapes,
        (mut lookups, lookups_short): (Vec<u64>, u64),
        mut ping: Vec<u64>,
        mut demand: Reads,
    ) -> Beside {
        let us = |ns: &mut [u64]| percentile(ns, 99) as f64 / 1e3;
        Beside {
            metrics_p99_ms: us(&mut scrapes.us),
            metrics_max_ms: percentile(&mut scrapes.us, 100) as f64 / 1e3,
            unanswered: scrapes.unanswered,
            unhealthy: scrapes.unhealthy,
            lookup_p99_us: us(&mut lookups),
            lookups_short,
            ping_p99_us: us(&mut ping),
            demand_p99_us: (!demand.ns.is_empty()).then(|| us(&mut demand.ns)),
            demand,
        }
    }
}

impl Found {
    pub(super) fn add(&mut self, other: Found) {
        self.blocks += other.blocks;
        self.compared += other.compared;
        self.unreadable += other.unreadable;
    }
}

/// Results of one daemon.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) stored: Stored,
    pub(super) found: Found,
    pub(super) beside: Beside,
    /// Bytes written to the disk.
    pub(super) written: f64,
    pub(super) dropped_unwritten: u64,
}

impl Run {
    /// Return the part of the stored blocks that is found.
    fn found(&self) -> f64 {
        self.found.blocks as f64 / (self.stored.blocks as f64).max(1.0)
    }

    /// Return the bytes found afterwards per second of storing.
    fn found_per_s(&self, block: u32) -> f64 {
        self.found.blocks as f64 * f64::from(block) / self.stored.seconds.max(f64::MIN_POSITIVE)
    }
}

/// A row.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) shape: Shape,
    pub(super) ours: Run,
    /// fio before and after.
    pub(super) fio: Vec<Pass>,
    /// The other daemon unless it failed.
    pub(super) other: Option<Option<Run>>,
}

impl Row {
    /// Return the row in one line, for progress messages.
    pub(super) fn line(&self) -> String {
        let (rate, run) = (self.ours.found_per_s(self.shape.block) / MIB, &self.ours);
        let fio = if self.fio.is_empty() { String::new() } else { format!(", fio {:.0}", over(&self.fio).0 / MIB) };
        format!(
            "{}: {rate:.0} MiB/s stored and found{fio}; hit rate {:.3}, {} blocks dropped unwritten, {} rejected",
            self.name,
            run.found(),
            run.dropped_unwritten,
            run.stored.refused
        )
    }

    pub(super) fn report(self, report: &mut Report) {
        self.rates(report);
        self.kept(report);
        self.probes(report);
        self.others(report);
        self.note(report);
    }

    fn key(&self, figure: &str) -> String {
        format!("{}.{figure}", self.name)
    }

    fn what(&self, what: &str) -> String {
        format!("{}: {what}", self.name)
    }

    fn is_large(&self) -> bool {
        self.shape.block >= 64 << 10
    }

    fn rates(&self, report: &mut Report) {
        let what = self.what("bytes stored and found a second ÷ fio");
        let least = match self.shape.block {
            ..16384 => 0.5,
            16384..65536 => 0.9,
            65536.. => 0.95,
        };
        let found = self.ours.found_per_s(self.shape.block);
        if self.fio.is_empty() {
            report.missing(self.key("rate_ratio"), what, "fio not found");
            report.missing(self.key("fio_mib_s"), self.what("fio's writer"), "fio not found");
        } else {
            let (fio, _) = over(&self.fio);
            report.fine(self.key("rate_ratio"), what, (found / fio, 3), "x", Some(Target::AtLeast(least)));
            report.number(self.key("fio_mib_s"), self.what("fio's writer"), fio / MIB, "MiB/s", None);
        }
        let stored = self.ours.stored.blocks as f64 * f64::from(self.shape.block) / self.ours.stored.seconds / MIB;
        report.number(self.key("stored_mib_s"), self.what("stored"), stored, "MiB/s", None);
    }

    fn kept(&self, report: &mut Report) {
        let none = Some(Target::AtMost(0.0));
        let run = &self.ours;
        let what = "part of the stored blocks that is found";
        report.fine(self.key("found"), self.what(what), (run.found(), 4), "", Some(Target::AtLeast(1.0)));
        let what = "dropped unwritten";
        report.count(self.key("dropped_unwritten"), self.what(what), run.dropped_unwritten, "blocks", none);
        report.count(self.key("refused"), self.what("rejected"), run.stored.refused, "blocks", none);
        let stored = (run.stored.blocks as f64 * f64::from(self.shape.block)).max(1.0);
        let (what, most) = ("bytes written ÷ stored", Some(Target::AtMost(1.15)));
        report.fine(self.key("bytes_written_ratio"), self.what(what), (run.written / stored, 3), "x", most);
    }

    fn probes(&self, report: &mut Report) {
        let Beside { metrics_p99_ms, metrics_max_ms, lookup_p99_us, ping_p99_us, demand_p99_us, ref demand, .. } =
            self.ours.beside;
        let mut number = |key, what, value, unit, target: Option<Target>| {
            report.number(self.key(key), self.what(what), value, unit, target);
        };
        let most = |value| Some(Target::AtMost(value));
        number("metrics_p99_ms", "/metrics and /healthz, p99", metrics_p99_ms, "ms", most(100.0));
        number("metrics_max_ms", "/metrics and /healthz, max", metrics_max_ms, "ms", most(1000.0));
        let bound = if self.shape.engines == 1 { 1000.0 } else { (2.0 * ping_p99_us).round() };
        number("lookup_p99_us", "lookup, p99", lookup_p99_us, "us", most(bound));
        number("ping_p99_us", "wake-up round trip of two threads, p99", ping_p99_us, "us", None);
        let none = "no block was only on NVMe";
        let (what, ratio) = (self.what("demand read, p99"), self.what("demand read, p99 ÷ fio's reader"));
        report.count(self.key("demand_reads"), self.what("demand reads"), demand.ns.len() as u64, "", None);
        match demand_p99_us {
            None => {
                report.missing(self.key("demand_read_p99_us"), what, none);
                report.missing(self.key("demand_read_ratio"), ratio, none);
            }
            Some(p99) => {
                report.number(self.key("demand_read_p99_us"), what, p99, "us", None);
                if self.fio.is_empty() {
                    report.missing(self.key("demand_read_ratio"), ratio, "fio not found");
                } else if let (_, Some(fio)) = over(&self.fio) {
                    report.number(self.key("fio_read_p99_us"), self.what("fio's reader, p99"), fio, "us", None);
                    report.fine(self.key("demand_read_ratio"), ratio, (p99 / fio, 3), "x", Some(Target::AtMost(1.0)));
                } else {
                    report.missing(self.key("demand_read_ratio"), ratio, "fio's writer ended before fio's first read");
                }
            }
        }
    }

    fn others(&self, report: &mut Report) {
        let Some(other) = &self.other else { return };
        let what = self.what("bytes found a second ÷ other daemon");
        let Some(other) = other else {
            return report.missing(self.key("rate_ratio_to_other"), what, "the other daemon failed");
        };
        let (ours, theirs) = (self.ours.found_per_s(self.shape.block), other.found_per_s(self.shape.block));
        let target = (self.is_large() && self.name.contains("fresh")).then_some(Target::AtLeast(1.8));
        report.fine(self.key("rate_ratio_to_other"), what, (ours / theirs.max(1.0), 3), "x", target);
    }

    fn note(&self, report: &mut Report) {
        let Run { stored, found, beside, .. } = &self.ours;
        let why: Vec<String> = stored.why.iter().map(|(why, stores)| format!("{why} {stores} times")).collect();
        let why = if why.is_empty() { String::new() } else { format!(", rejected stores: {}", why.join(", ")) };
        report.note(format!(
            "{}: {} demand reads ({} failed, {} in host memory, {} evicted, longest lease {:.1} ms), \
            {} blocks compared, {} not loaded, {} scrapes without response, {} unhealthy, {} partial lookups{why}",
            self.name,
            beside.demand.ns.len(),
            beside.demand.failed,
            beside.demand.in_host,
            beside.demand.gone,
            beside.demand.lease_ns as f64 / 1e6,
            found.compared,
            found.unreadable,
            beside.unanswered,
            beside.unhealthy,
            beside.lookups_short,
        ));
    }
}

//! The last hour of the daemon's figures, for the charts of the web page: it has history without Prometheus.

use super::snapshot::Snapshot;
use kvtide_nvme::DiskStatus;
use kvtide_rt::histogram::{BUCKETS, Histogram};
use kvtide_tiering::Edge;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Period between two points.
const STEP: Duration = Duration::from_secs(5);
/// The health monitor may come so much earlier.
const EARLY: Duration = Duration::from_millis(500);
/// Points kept: those of an hour.
const POINTS: usize = 720;

/// Names of the columns, in the order of a point's values. Counters are as they are; the page computes rates.
pub(crate) const COLUMNS: [&str; 35] = [
    "time_s",
    "asked_tokens",
    "found_tokens",
    "loaded_tier0_tokens",
    "loaded_host_tokens",
    "loaded_nvme_tokens",
    "recompute_us",
    "load_us",
    "tier0_used_bytes",
    "tier0_bytes",
    "host_used_bytes",
    "host_bytes",
    "nvme_used_bytes",
    "nvme_bytes",
    "host_to_tier0_bytes",
    "tier0_to_host_bytes",
    "nvme_to_host_bytes",
    "host_to_nvme_bytes",
    "lookup_p50_us",
    "lookup_p99_us",
    "load_p50_us",
    "load_p99_us",
    "disk_failures",
    "disk_read_bytes",
    "disk_written_bytes",
    "prefetch_used",
    "prefetch_late",
    "prefetch_wasted",
    "evicted_tier0_pages",
    "evicted_host_pages",
    "dropped_blocks",
    "dropped_nvme_full",
    "dropped_not_admitted",
    "dropped_expired",
    "dropped_by_hand",
];

/// A point: a value of each column. A latency is -1 if nothing happened in its interval.
type Point = [f64; COLUMNS.len()];

/// The points, shared by all clones: the health monitor adds them, the HTTP server reads them.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    points: VecDeque<Point>,
    last: Option<Instant>,
    /// Histograms of lookups and loads of each space at the last point.
    before: BTreeMap<u32, [Histogram; 2]>,
}

impl History {
    /// Add a point, if one is due.
    pub fn take(&self, now: Instant, snapshot: &Snapshot) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.last.is_some_and(|last| now.duration_since(last) + EARLY < STEP) {
            return;
        }
        inner.last = Some(now);
        let times = snapshot.spaces.iter().map(|space| {
            let of = &space.request_times;
            (space.space, [of.lookup, of.load])
        });
        let times: BTreeMap<u32, [Histogram; 2]> = times.collect();
        let latencies = [0, 1].map(|which| {
            let before = |space: &u32| inner.before.get(space).map(|histograms| histograms[which]).unwrap_or_default();
            let since = times.iter().map(|(space, now)| difference(&now[which], &before(space)));
            let since = since.fold(Histogram::default(), |all, more| sum(&all, &more));
            [quantile(&since, 0.5), quantile(&since, 0.99)]
        });
        inner.before = times;
        let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        if inner.points.len() == POINTS {
            inner.points.pop_front();
        }
        inner.points.push_back(point(time_s, snapshot, latencies));
    }

    /// Return the values of each column, the oldest first.
    pub fn columns(&self) -> Vec<(&'static str, Vec<f64>)> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let column = |at: usize| inner.points.iter().map(|point| point[at]).collect();
        COLUMNS.iter().enumerate().map(|(at, name)| (*name, column(at))).collect()
    }
}

fn sum(a: &Histogram, b: &Histogram) -> Histogram {
    let mut all = *a;
    all.buckets.iter_mut().zip(b.buckets).for_each(|(sum, count)| *sum += count);
    all
}

/// Return what was added to the histogram of a space.
fn difference(now: &Histogram, before: &Histogram) -> Histogram {
    let mut since = *now;
    since.buckets.iter_mut().zip(before.buckets).for_each(|(count, before)| *count = count.saturating_sub(before));
    since
}

/// Return the upper bound of the bucket that holds a quantile, in microseconds; -1 if nothing was counted.
fn quantile(histogram: &Histogram, share: f64) -> f64 {
    let all: u64 = histogram.buckets.iter().sum();
    let rank = (all as f64 * share).ceil() as u64;
    let mut below = 0;
    for (power, count) in histogram.buckets.iter().enumerate() {
        below += count;
        if all > 0 && below >= rank {
            return (1u64 << power.min(BUCKETS - 1)) as f64;
        }
    }
    -1.0
}

fn point(time_s: f64, snapshot: &Snapshot, [lookup, load]: [[f64; 2]; 2]) -> Point {
    let hits = &snapshot.hits;
    let mut sums = [0u64; 18];
    for space in &snapshot.spaces {
        let (full, core) = (&space.occupancy, &space.core);
        let (tier0, host, nvme) = (full.tier0.used_of_all(), full.host.used_of_all(), full.nvme_used_of_all());
        let moved =
            [&core.host_to_tier0, &core.tier0_to_host, &core.nvme_to_host, &core.host_to_nvme].map(Edge::total_bytes);
        let more = [
            tier0.0,
            tier0.1,
            host.0,
            nvme.0,
            moved[0],
            moved[1],
            moved[2],
            moved[3],
            core.prefetch_used,
            core.prefetch_late,
            core.prefetch_wasted,
            core.evictions,
            core.host_evictions,
            core.cache_drops,
            core.nvme_drops,
            core.refused_dropped,
            core.expired,
            core.evicted_by_hand,
        ];
        sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
    let host_all = snapshot.host.as_ref().map_or(0, |host| host.capacity_bytes);
    let nvme_all: u64 = snapshot.disks.iter().map(|disk| disk.capacity_bytes).sum();
    let read: u64 = snapshot.disks.iter().map(|disk| disk.bytes().0).sum();
    let written: u64 = snapshot.disks.iter().map(DiskStatus::written_bytes).sum();
    let failures: u64 = snapshot.disks.iter().map(|disk| disk.failed() + disk.checksum_failures).sum();
    let whole = |value: u64| value as f64;
    let s = sums.map(whole);
    [
        time_s,
        whole(hits.asked_tokens),
        whole(hits.found_tokens),
        whole(hits.loaded_tokens.tier0),
        whole(hits.loaded_tokens.host),
        whole(hits.loaded_tokens.nvme),
        whole(hits.recompute_us),
        whole(hits.load_us),
        s[0],
        s[1],
        s[2],
        whole(host_all),
        s[3],
        whole(nvme_all),
        s[4],
        s[5],
        s[6],
        s[7],
        lookup[0],
        lookup[1],
        load[0],
        load[1],
        whole(failures),
        whole(read),
        whole(written),
        s[8],
        s[9],
        s[10],
        s[11],
        s[12],
        s[13],
        s[14],
        s[15],
        s[16],
        s[17],
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_takes_less_than_two_mebibytes() {
        assert!(POINTS * size_of::<Point>() < 2 << 20);
        let (history, began) = (History::default(), Instant::now());
        let mut snapshot = Snapshot::default();
        for step in 0..POINTS as u64 + 10 {
            snapshot.hits.asked_tokens = step;
            history.take(began + STEP * step as u32, &snapshot);
            history.take(began + STEP * step as u32 + STEP / 2, &snapshot);
        }
        let columns = history.columns();
        assert_eq!((columns.len(), columns[1].0, columns[1].1.len()), (COLUMNS.len(), "asked_tokens", POINTS));
        assert_eq!((columns[1].1[0], columns[1].1[POINTS - 1]), (10.0, POINTS as f64 + 9.0));
    }

    #[test]
    fn latencies_are_those_since_the_last_point() {
        let (history, began) = (History::default(), Instant::now());
        let mut snapshot = Snapshot { spaces: vec![crate::space::SpaceStatus::default()], ..Snapshot::default() };
        let column = |history: &History, name: &str| {
            history.columns().into_iter().find(|(column, _)| *column == name).map(|(_, values)| values).unwrap()
        };
        (0..99).for_each(|_| snapshot.spaces[0].request_times.lookup.add(3));
        snapshot.spaces[0].request_times.lookup.add(1000);
        history.take(began, &snapshot);
        history.take(began + STEP, &snapshot);
        snapshot.spaces[0].request_times.lookup.add(1000);
        history.take(began + STEP * 2, &snapshot);
        assert_eq!(column(&history, "lookup_p50_us"), [4.0, -1.0, 1024.0]);
        assert_eq!(column(&history, "lookup_p99_us"), [4.0, -1.0, 1024.0]);
        assert_eq!(column(&history, "load_p99_us"), [-1.0, -1.0, -1.0]);
        // A space that ends takes its counts with it, and those of the others stay as they are.
        snapshot.spaces.push(crate::space::SpaceStatus { space: 2, ..crate::space::SpaceStatus::default() });
        snapshot.spaces[1].request_times.lookup.add(15);
        history.take(began + STEP * 3, &snapshot);
        snapshot.spaces.remove(0);
        history.take(began + STEP * 4, &snapshot);
        assert_eq!(column(&history, "lookup_p50_us")[3..], [16.0, -1.0]);
    }
}

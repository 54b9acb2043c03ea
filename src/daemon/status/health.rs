//! Health as a pure function of a snapshot: the reasons in `/healthz` and the log. systemd's watchdog gets no ping while the daemon
//! is unhealthy.

use super::budget::WriteBudget;
use super::snapshot::Thread;
use super::thread_registry::Stage;
use crate::config::Human;
use crate::host::HostStatus;
use kvtide_nvme::DiskStatus;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// Limit for one loop iteration of a thread, and for the delay of a wakeup. Iterations of a core thread take microseconds, those of
/// the host thread tens of milliseconds. Even a machine too busy for this limit serves no engine.
pub(super) const SILENT_MAX_S: f64 = 5.0;

/// Limit for a call of the index log into the device. A flush of its cache takes milliseconds, on a worn or busy device seconds.
/// Beyond this limit, no block can be stored.
const LOG_INSIDE_MAX_US: u64 = 10_000_000;

/// One problem, for programs and people.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reason {
    /// The problem.
    #[serde(flatten)]
    pub what: Wrong,
    /// Description in words.
    pub text: String,
}

/// Kinds of problems.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Wrong {
    /// A thread of the daemon is unresponsive.
    ThreadSilent {
        /// Name of the thread.
        thread: String,
        /// Seconds it has been unresponsive.
        silent_s: f64,
        /// Limit in seconds.
        limit_s: f64,
    },
    /// Requests of a disk exceed its timeout.
    DiskStalled {
        /// Number of the disk.
        disk: u16,
        /// Directory of the disk.
        dir: PathBuf,
        /// Number of such requests.
        requests: u32,
    },
    /// The index log thread of a disk is blocked in the device.
    LogStuck {
        /// Number of the disk.
        disk: u16,
        /// Directory or device of the disk.
        dir: PathBuf,
        /// Seconds it has been blocked.
        inside_s: f64,
        /// Limit in seconds.
        limit_s: f64,
    },
    /// A disk was taken out of service, or was missing at the start.
    DiskOutOfService {
        /// Number of the disk.
        disk: u16,
        /// Directory or device of the disk.
        dir: PathBuf,
        /// Last error number of the disk; 0: short requests.
        errno: i32,
        /// Reason in words, with what to do.
        why: String,
    },
    /// The file system of a disk is full.
    DiskFull {
        /// Number of the disk.
        disk: u16,
        /// Directory of the disk.
        dir: PathBuf,
    },
    /// Not all memory of the host tier could be allocated at start.
    HostShort {
        /// Why, in the words of the failed call.
        why: String,
    },
    /// The socket's path no longer leads to the daemon's socket.
    SocketLost {
        /// Why it cannot be bound again.
        why: String,
    },
    /// `bytes_per_day` is too small for the blocks selected by admission.
    WriteBudgetShort {
        /// Blocks dropped unwritten within the window.
        blocks: u64,
        /// Their bytes.
        bytes: u64,
        /// Bytes written within the window.
        written_bytes: u64,
        /// Length of the window in seconds.
        window_s: f64,
        /// Bytes allowed a day, over all disks in service.
        bytes_per_day: u64,
    },
    /// Blocks were dropped because stores exceeded the disks' write rate.
    StoresOutrunDisks {
        /// Blocks dropped unwritten within the window.
        blocks: u64,
        /// Their bytes.
        bytes: u64,
        /// Bytes written within the window.
        written_bytes: u64,
        /// Length of the window in seconds.
        window_s: f64,
    },
    /// A problem that only a daemon of another version reports.
    #[default]
    #[serde(other)]
    Other,
}

impl Reason {
    /// Return true if both reasons are about the same problem, regardless of its figures.
    pub fn is_same(&self, other: &Reason) -> bool {
        match (&self.what, &other.what) {
            (Wrong::ThreadSilent { thread: a, .. }, Wrong::ThreadSilent { thread: b, .. }) => a == b,
            (Wrong::DiskStalled { disk: a, .. }, Wrong::DiskStalled { disk: b, .. })
            | (Wrong::LogStuck { disk: a, .. }, Wrong::LogStuck { disk: b, .. })
            | (Wrong::DiskOutOfService { disk: a, .. }, Wrong::DiskOutOfService { disk: b, .. })
            | (Wrong::DiskFull { disk: a, .. }, Wrong::DiskFull { disk: b, .. }) => a == b,
            (Wrong::SocketLost { .. }, Wrong::SocketLost { .. })
            | (Wrong::HostShort { .. }, Wrong::HostShort { .. }) => true,
            (Wrong::WriteBudgetShort { .. }, Wrong::WriteBudgetShort { .. })
            | (Wrong::StoresOutrunDisks { .. }, Wrong::StoresOutrunDisks { .. }) => true,
            _ => false,
        }
    }
}

impl From<Wrong> for Reason {
    fn from(what: Wrong) -> Reason {
        let text = match &what {
            Wrong::ThreadSilent { thread, silent_s, limit_s } => {
                format!("thread {thread} has been unresponsive for {silent_s:.1} s (limit: {limit_s} s)")
            }
            Wrong::DiskStalled { disk, dir, requests } => {
                let dir = dir.display();
                format!("disk {disk} ({dir}): {requests} requests exceed tiers.nvme.timeout_ms")
            }
            Wrong::LogStuck { disk, dir, inside_s, limit_s } => {
                let dir = dir.display();
                format!("disk {disk} ({dir}): index log blocked in the device for {inside_s:.1} s (limit: {limit_s} s)")
            }
            Wrong::DiskOutOfService { disk, dir, why, .. } => {
                format!("disk {disk} ({}) is out of service: {why}", dir.display())
            }
            Wrong::DiskFull { disk, dir } => format!(
                "disk {disk} ({}): the file system is full, so the NVMe tier cannot grow and keeps fewer blocks; free space there, or \
                 reduce tiers.nvme.disks[].capacity",
                dir.display()
            ),
            Wrong::HostShort { why } => format!(
                "the host tier has less memory than tiers.host.capacity: {why}; end other programs or reduce the capacity, and \
                 restart the daemon"
            ),
            Wrong::SocketLost { why } => {
                format!("engines cannot attach: the socket was deleted or replaced and cannot be bound again: {why}")
            }
            Wrong::WriteBudgetShort { blocks, bytes, written_bytes, window_s, bytes_per_day } => format!(
                "NVMe write budget: {blocks} blocks ({}) dropped unwritten in the last {:.0} min; bytes_per_day allows {} \
                 ({} an hour), {} were written; raise tiers.nvme.disks[].bytes_per_day (kvtide advise prints a sufficient value), \
                 or restrict tiers.nvme.admission",
                Human(*bytes),
                (window_s / 60.0).ceil(),
                Human(*bytes_per_day),
                Human(bytes_per_day / 24),
                Human(*written_bytes),
            ),
            Wrong::StoresOutrunDisks { blocks, bytes, written_bytes, window_s } => format!(
                "stores exceed the disks' write rate: {blocks} blocks ({}, {:.0} % of the bytes to write) dropped unwritten in \
                 the last {:.0} min; add a disk, increase the host or NVMe capacity, or restrict tiers.nvme.admission",
                Human(*bytes),
                *bytes as f64 * 100.0 / (bytes + written_bytes) as f64,
                (window_s / 60.0).ceil(),
            ),
            Wrong::Other => "an unknown problem".to_owned(),
        };
        Reason { what, text }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Return the problems that make the daemon unhealthy.
pub(super) fn reasons(stage: Stage, threads: &[Thread], disks: &[DiskStatus]) -> Vec<Reason> {
    // At the start disks are opened, which may take long.
    let hung = threads.iter().filter(|thread| stage != Stage::Starting && thread.silent_s > SILENT_MAX_S);
    let silent = hung.map(|thread| Wrong::ThreadSilent {
        thread: thread.name.clone(),
        silent_s: thread.silent_s,
        limit_s: SILENT_MAX_S,
    });
    let stalled = disks.iter().filter(|disk| disk.stalled);
    let stalled = stalled.map(|disk| Wrong::DiskStalled {
        disk: disk.number,
        dir: disk.dir.clone(),
        requests: disk.stalled_requests,
    });
    let stuck = disks.iter().filter(|disk| stage != Stage::Starting && disk.log.inside_us > LOG_INSIDE_MAX_US);
    let stuck = stuck.map(|disk| Wrong::LogStuck {
        disk: disk.number,
        dir: disk.dir.clone(),
        inside_s: disk.log.inside_us as f64 * 1e-6,
        limit_s: LOG_INSIDE_MAX_US as f64 * 1e-6,
    });
    silent.chain(stalled).chain(stuck).map(Reason::from).collect()
}

/// Return the reasons for degraded service: disks out of service, full file systems, too little host memory, a lost socket with the
/// bind error, a short write budget, stores that exceed the disks' write rate.
pub(super) fn degraded(
    disks: &[DiskStatus],
    host: Option<&HostStatus>,
    socket: Option<String>,
    budget: &WriteBudget,
) -> Vec<Reason> {
    let short_of = host.filter(|host| !host.allocation_error.is_empty());
    let short_of = short_of.map(|host| Wrong::HostShort { why: host.allocation_error.clone() });
    let out = disks.iter().filter_map(|disk| {
        let errno = disk.out_of_service?;
        Some(Wrong::DiskOutOfService { disk: disk.number, dir: disk.dir.clone(), errno, why: disk.why_out.clone() })
    });
    let short = budget.bytes_per_day.filter(|_| budget.is_short()).map(|bytes_per_day| Wrong::WriteBudgetShort {
        blocks: budget.all.over_budget_blocks,
        bytes: budget.all.over_budget_bytes,
        written_bytes: budget.all.written_bytes,
        window_s: budget.window_s,
        bytes_per_day,
    });
    let outrun = budget.is_outrun().then_some(Wrong::StoresOutrunDisks {
        blocks: budget.all.unwritten_blocks,
        bytes: budget.all.unwritten_bytes,
        written_bytes: budget.all.written_bytes,
        window_s: budget.window_s,
    });
    let full = disks.iter().filter(|disk| disk.out_of_service.is_none() && disk.log.no_room);
    let full = full.map(|disk| Wrong::DiskFull { disk: disk.number, dir: disk.dir.clone() });
    out.chain(full)
        .chain(short_of)
        .chain(socket.map(|why| Wrong::SocketLost { why }))
        .chain(short)
        .chain(outrun)
        .map(Reason::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::budget::Spent;
    use kvtide_nvme::LogReport;

    #[test]
    fn a_thread_is_late_only_beyond_the_limit() {
        let thread = |name: &str, silent_s| Thread { name: name.into(), silent_s, age_s: 0.0 };
        assert_eq!(reasons(Stage::Serving, &[thread("host", 0.0), thread("space-1", SILENT_MAX_S)], &[]), []);
        let threads = [thread("control", 0.1), thread("space-1", 7.25)];
        let found = reasons(Stage::Serving, &threads, &[]);
        let silent = Wrong::ThreadSilent { thread: "space-1".into(), silent_s: 7.25, limit_s: SILENT_MAX_S };
        assert_eq!(found, [Reason::from(silent)]);
        assert_eq!(found[0].to_string(), "thread space-1 has been unresponsive for 7.2 s (limit: 5 s)");
        assert_eq!(serde_json::to_value(&found[0]).unwrap()["reason"], "thread_silent");
        assert_eq!(reasons(Stage::Starting, &threads, &[]), [], "disks may take long");
    }

    #[test]
    fn a_disk_out_of_service_degrades_and_does_not_make_unhealthy() {
        let disk = |errno, why: &str| DiskStatus {
            number: 2,
            dir: "/d".into(),
            out_of_service: errno,
            why_out: why.into(),
            ..DiskStatus::default()
        };
        let disks = [disk(None, ""), disk(Some(5), "too many errors"), disk(Some(2), "/d was deleted")];
        assert_eq!(reasons(Stage::Serving, &[], &disks), []);
        let budget = WriteBudget::default();
        let host = HostStatus { allocation_error: "no memory".into(), ..HostStatus::default() };
        let found = degraded(&disks, Some(&host), Some("EACCES".into()), &budget);
        let texts: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "disk 2 (/d) is out of service: too many errors",
                "disk 2 (/d) is out of service: /d was deleted",
                "the host tier has less memory than tiers.host.capacity: no memory; end other programs or reduce the capacity, and \
                 restart the daemon",
                "engines cannot attach: the socket was deleted or replaced and cannot be bound again: EACCES"
            ]
        );
        assert_eq!(serde_json::to_value(&degraded(&disks, None, None, &budget)[0]).unwrap()["errno"], 5);
    }

    #[test]
    fn a_full_file_system_degrades() {
        let disk = |number, no_room, out_of_service| {
            let log = LogReport { no_room, ..LogReport::default() };
            DiskStatus { number, dir: "/d".into(), log, out_of_service, ..DiskStatus::default() }
        };
        let disks = [disk(0, false, None), disk(1, true, None), disk(2, true, Some(5))];
        let found = degraded(&disks, None, None, &WriteBudget::default());
        assert_eq!(found.len(), 2, "one that is out of service has another reason: {found:?}");
        assert_eq!(serde_json::to_value(&found[1]).unwrap()["reason"], "disk_full");
        assert!(found[1].to_string().starts_with("disk 1 (/d): the file system is full"), "{}", found[1]);
        assert!(found[1].is_same(&Wrong::DiskFull { disk: 1, dir: "/e".into() }.into()));
    }

    #[test]
    fn a_short_write_budget_degrades_with_its_figures() {
        let all = Spent {
            uses: 9,
            written_bytes: 4 << 30,
            over_budget_blocks: 351_738,
            over_budget_bytes: 86 << 30,
            ..Spent::default()
        };
        let budget = WriteBudget { bytes_per_day: Some(96 << 30), window_s: 3600.0, all, ..WriteBudget::default() };
        let found = degraded(&[], None, None, &budget);
        let text = found[0].to_string();
        for part in ["351738 blocks (86 GiB) dropped unwritten in the last 60 min", "allows 96 GiB (4 GiB an hour)"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        assert_eq!(serde_json::to_value(&found[0]).unwrap()["reason"], "write_budget_short");
        let later = WriteBudget { all: Spent { over_budget_blocks: 1, ..all }, ..budget.clone() };
        assert!(found[0].is_same(&degraded(&[], None, None, &later)[0]));
        assert_eq!(degraded(&[], None, None, &WriteBudget { bytes_per_day: None, ..budget }), []);
    }

    #[test]
    fn blocks_dropped_before_the_disks_had_them_degrade() {
        let all =
            Spent { written_bytes: 3 << 30, unwritten_blocks: 16_384, unwritten_bytes: 1 << 30, ..Spent::default() };
        let budget = WriteBudget { window_s: 90.0, all, ..WriteBudget::default() };
        let found = degraded(&[], None, None, &budget);
        let text = found[0].to_string();
        assert!(
            text.starts_with("stores exceed the disks' write rate: 16384 blocks (1 GiB, 25 % of the bytes to write)"),
            "{text}"
        );
        assert_eq!(serde_json::to_value(&found[0]).unwrap()["reason"], "stores_outrun_disks");
    }

    #[test]
    fn a_log_that_stays_in_the_device_is_wrong() {
        let disk = |inside_us| {
            let log = LogReport { inside_us, ..LogReport::default() };
            DiskStatus { log, ..DiskStatus::default() }
        };
        assert_eq!(reasons(Stage::Serving, &[], &[disk(LOG_INSIDE_MAX_US)]), []);
        let found = reasons(Stage::Serving, &[], &[disk(12_500_000)]);
        assert!(found[0].to_string().contains("blocked in the device for 12.5 s"), "{}", found[0]);
        assert_eq!(reasons(Stage::Starting, &[], &[disk(12_500_000)]), [], "recovery may take long");
    }

    #[test]
    fn a_stalled_disk_is_wrong_at_any_time() {
        let disk = |number, stalled| DiskStatus { number, stalled, stalled_requests: 3, ..DiskStatus::default() };
        let found = reasons(Stage::Starting, &[], &[disk(0, false), disk(1, true)]);
        let [Reason { what: Wrong::DiskStalled { disk: 1, requests: 3, .. }, .. }] = &found[..] else {
            panic!("{found:?}")
        };
        let later = Wrong::DiskStalled { disk: 1, dir: "/elsewhere".into(), requests: 9 };
        assert!(found[0].is_same(&later.into()));
    }
}

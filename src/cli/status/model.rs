//! The fields of a daemon's status that the tool reads. Missing fields are zero or empty.

use kvtide_daemon::error::Error;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Supported schema version. A version may gain fields; existing fields do not change.
const SCHEMA: u32 = 1;

/// The whole status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub schema: u32,
    pub build: Build,
    pub pid: u32,
    pub uptime_s: f64,
    pub stage: String,
    pub progress: String,
    pub unhealthy: Vec<Reason>,
    pub degraded: Vec<Reason>,
    pub threads: Vec<Thread>,
    pub session_totals: SessionTotals,
    pub sessions: Vec<Session>,
    pub spaces: Vec<Space>,
    pub host: Option<Host>,
    pub disks: Vec<Disk>,
    pub wear: Vec<Wear>,
    pub write_budget: WriteBudget,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WriteBudget {
    pub bytes_per_day: Option<u64>,
    pub window_s: f64,
    pub all: Spent,
    /// By the space's number.
    pub spaces: BTreeMap<u32, Spent>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Spent {
    pub uses: u64,
    pub written_bytes: u64,
    pub over_budget_blocks: u64,
    pub over_budget_bytes: u64,
    pub unwritten_blocks: u64,
    pub unwritten_bytes: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Build {
    pub version: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Reason {
    pub text: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Thread {
    pub name: String,
    pub silent_s: f64,
    pub age_s: f64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SessionTotals {
    pub attached: u64,
    pub ended: u64,
    pub expelled: u64,
    pub refused: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Session {
    pub session: u32,
    pub space: u32,
    pub pid: u32,
    pub uid: u32,
    pub shard: u16,
    pub live: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Space {
    pub space: u32,
    pub name: String,
    pub domain: String,
    pub sessions: u64,
    pub lingering: u64,
    pub transfers: u64,
    pub occupancy: Occupancy,
    pub core: Core,
    pub eviction: Eviction,
    pub endurance: Endurance,
    pub nvme: Unreadable,
    pub canary: Canary,
    pub request_times: RequestTimes,
    pub attached: Vec<Attached>,
}

/// Estimates of a space's ghost caches.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Eviction {
    pub found: Option<f64>,
    pub configured: String,
    pub follow: String,
    pub content_bytes: u64,
    pub contents: u64,
    pub host: u64,
    pub policies: Vec<(String, Option<f64>)>,
    pub curve: Vec<Curve>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Curve {
    pub contents: u64,
    pub hits: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Occupancy {
    pub blocks: u64,
    pub blocks_max: u64,
    pub published: u64,
    pub cold: u64,
    pub keeping: u64,
    pub host: Fill,
    pub tier0: Fill,
    pub nvme_slots: u64,
    pub nvme_slots_used: u64,
    pub nvme_slots_limbo: u64,
    pub nvme_slot_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Fill {
    pub free: Amount,
    pub clean: Amount,
    pub dirty: Amount,
    pub pinned: Amount,
    pub busy: Amount,
    pub quarantined: Amount,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Amount {
    pub bytes: u64,
}

impl Fill {
    /// Return the used bytes and all bytes.
    pub fn used_of_all(&self) -> (u64, u64) {
        let used = [self.clean, self.dirty, self.pinned, self.busy, self.quarantined].iter().map(|a| a.bytes).sum();
        (used, used + self.free.bytes)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Core {
    pub found_tier0: u64,
    pub found_host: u64,
    pub found_nvme: u64,
    pub found_nowhere: u64,
    pub host_to_tier0: Edge,
    pub tier0_to_host: Edge,
    pub nvme_to_host: Edge,
    pub host_to_nvme: Edge,
    pub evictions: u64,
    pub faults: u64,
    pub stalls: u64,
    pub requests_failed: u64,
    pub io_failed: u64,
    pub checksum_failed: u64,
    pub pages_lost: u64,
    pub prefetch_used: u64,
    pub prefetch_late: u64,
    pub prefetch_wasted: u64,
    pub intent_used: u64,
    pub intent_late: u64,
    pub intent_missed: u64,
    pub intent_wasted: u64,
    pub published: u64,
    pub stored: u64,
    pub restored: u64,
    pub restore_refused: u64,
    pub records: u64,
    pub records_failed: u64,
    pub nvme_hits: u64,
    pub over_budget_drops: u64,
    pub over_budget_drop_bytes: u64,
    pub unwritten_drops: u64,
    pub unwritten_drop_bytes: u64,
    pub contents_corrupt: u64,
    pub contents_gone: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Endurance {
    pub admission: String,
    pub bytes_per_day: u64,
    pub left_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Unreadable {
    pub corrupt: u64,
    pub lost_unflushed: u64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Canary {
    pub checked: u64,
    pub failed: u64,
    pub written_checked: u64,
    pub written_failed: u64,
}

impl Canary {
    /// Return the number of pages compared, and of those that differed.
    pub fn all(&self) -> (u64, u64) {
        (self.checked + self.written_checked, self.failed + self.written_failed)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Edge {
    /// By reason.
    pub bytes: Vec<u64>,
}

impl Edge {
    /// Return the sum over all reasons.
    pub fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RequestTimes {
    pub fault: Times,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Times {
    pub sum_us: u64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Attached {
    pub session: u32,
    pub requests: u64,
    pub requests_in_flight: u64,
    pub jobs_in_flight: u64,
    pub faults: u64,
    pub stalled_us: u64,
    pub loaded_bytes: u64,
    pub stored_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Host {
    pub capacity_bytes: u64,
    pub granted_bytes: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Disk {
    pub number: u32,
    pub dir: String,
    pub mode: String,
    pub capacity_bytes: u64,
    pub classes: Vec<Class>,
    pub at_device: u64,
    pub depth: u64,
    pub stalled: bool,
    pub checksum_failures: u64,
    pub written_today_bytes: u64,
    pub written_ever_bytes: u64,
    pub out_of_service: Option<i32>,
    pub log: Log,
    pub written: Written,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Log {
    pub half_bytes: u64,
    pub live_bytes: u64,
    pub blocks: u64,
    pub slabs: u64,
    pub appended_bytes: u64,
    pub compacted_bytes: u64,
    pub full: u64,
    pub recovery: Recovery,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Recovery {
    pub took_us: u64,
    pub records: u64,
    pub blocks: u64,
    pub sealed: u64,
    pub torn: u64,
    pub stale: u64,
    pub corrupt: u64,
    pub unreadable: u64,
    pub lost_unflushed: u64,
    pub partial: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Written {
    pub page_bytes: u64,
    pub request_bytes: u64,
    pub superblock_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wear {
    pub disk: u32,
    pub bytes_per_day: Option<u64>,
    pub endurance_bytes: Option<u64>,
    pub rate_bytes_per_day: Option<f64>,
    pub life_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Class {
    pub queued: u64,
    pub reads: Way,
    pub writes: Way,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Way {
    pub bytes: u64,
    pub failed: u64,
}

impl Status {
    /// Return true if it serves and is healthy.
    pub fn is_well(&self) -> bool {
        self.stage == "serving" && self.unhealthy.is_empty()
    }

    /// Return the health in a few words, for `kvtide status` and `top`.
    pub fn health(&self) -> String {
        match &self.unhealthy[..] {
            [] if self.stage == "starting" && !self.progress.is_empty() => self.progress.clone(),
            [] => match &self.degraded[..] {
                [] => "healthy".into(),
                [only] => format!("degraded: {}", only.text),
                [first, rest @ ..] => format!("degraded: {} (and {} more)", first.text, rest.len()),
            },
            [only] => only.text.clone(),
            [first, rest @ ..] => format!("{} (and {} more)", first.text, rest.len()),
        }
    }
}

impl Disk {
    /// Return the bytes written to the device for each byte of a page; `None` before the first page.
    pub fn write_amplification(&self) -> Option<f64> {
        let Written { page_bytes, request_bytes, superblock_bytes } = self.written;
        let all = request_bytes + superblock_bytes + self.log.appended_bytes + self.log.compacted_bytes;
        (page_bytes > 0).then(|| all as f64 / page_bytes as f64)
    }

    /// Return the bytes read and written.
    pub fn bytes(&self) -> (u64, u64) {
        let sum = |way: fn(&Class) -> u64| self.classes.iter().map(way).sum();
        (sum(|class| class.reads.bytes), sum(|class| class.writes.bytes))
    }

    /// Return the number of failed transfers.
    pub fn failed(&self) -> u64 {
        self.classes.iter().map(|class| class.reads.failed + class.writes.failed).sum()
    }

    /// Return the number of queued transfers.
    pub fn queued(&self) -> u64 {
        self.classes.iter().map(|class| class.queued).sum()
    }
}

/// Parse a response.
///
/// # Errors
/// It is not a status, or has an unsupported schema version.
pub(crate) fn parse(address: &str, text: &str) -> Result<Status, Error> {
    let other = |what: String| Error::NotADaemon { address: address.into(), what };
    let status: Status = serde_json::from_str(text).map_err(|error| other(format!("not a status ({error})")))?;
    match status.schema {
        SCHEMA => Ok(status),
        schema => Err(other(format!("unsupported schema version {schema} (supported: {SCHEMA})"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_another_form_is_refused_and_more_fields_are_not() {
        let status = parse("here", r#"{"schema": 1, "stage": "serving", "new": {"a": 1}}"#).unwrap();
        assert!(status.is_well() && status.host.is_none());
        let error = parse("here", r#"{"schema": 2}"#).unwrap_err().to_string();
        assert!(error.contains("version 2") && error.contains("supported: 1"), "{error}");
        assert!(parse("here", "<html>").unwrap_err().to_string().contains("not a status"));
    }
}

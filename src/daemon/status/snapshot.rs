//! Status of the daemon at one moment: the content of `/v1/status` and the source of metrics.

use super::budget::WriteBudget;
use super::build::Build;
use super::endurance::DriveEndurance;
use super::health::{Reason, Wrong};
use super::tenants::Tenant;
use super::thread_registry::{Reloads, Stage};
use crate::error::Error;
use crate::host::HostStatus;
use crate::session::{SessionInfo, SessionTotals};
use crate::space::SpaceStatus;
use kvtide_http::counters::HttpTotals;
use kvtide_nvme::DiskStatus;
use kvtide_tiering::Hits;
use kvtide_trace::TraceTotals;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Version of the JSON form. It is raised when a field is removed or changes its meaning, not when one is added.
pub(crate) const SCHEMA: u32 = 1;

/// Figures last published by each thread; [`Snapshot::threads`] gives their age.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version and build of the daemon.
    pub build: Build,
    /// Process id.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// Stage of the daemon's life.
    pub stage: Stage,
    /// HTTP address.
    pub http: Option<SocketAddr>,
    /// Socket that engines attach to.
    pub socket: PathBuf,
    /// Counters of HTTP faults.
    pub http_totals: HttpTotals,
    /// Counters of traces.
    pub trace_totals: TraceTotals,
    /// Current activity of the start; empty once it serves.
    pub progress: String,
    /// Problems that make the daemon unhealthy; empty: healthy.
    pub unhealthy: Vec<Reason>,
    /// Problems that limit the service but do not make it unhealthy. A restart would not help.
    pub degraded: Vec<Reason>,
    /// The daemon's threads.
    pub threads: Vec<Thread>,
    /// What the prefix cache gave to engines since the start.
    pub hits: Hits,
    /// Figures of each tenant.
    pub tenants: Vec<Tenant>,
    /// An operator has stopped attaches.
    pub drained: bool,
    /// Reloads of the configuration.
    pub reloads: Reloads,
    /// Totals of attaches and sessions since the start.
    pub session_totals: SessionTotals,
    /// Sessions, including disconnected ones with a process that is still alive.
    pub sessions: Vec<SessionInfo>,
    /// Spaces.
    pub spaces: Vec<SpaceStatus>,
    /// Relays that watch the spaces of a domain, by domain.
    pub relays: Vec<RelayStatus>,
    /// Host memory.
    pub host: Option<HostStatus>,
    /// Disks of the NVMe tier.
    pub disks: Vec<DiskStatus>,
    /// Endurance of the disks, in the same order.
    pub endurance: Vec<DriveEndurance>,
    /// Bytes written over the last hour, and blocks lost because of `bytes_per_day`.
    pub write_budget: WriteBudget,
}

/// Responsiveness of a thread and age of its figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Thread {
    /// Its name: `control`, `host`, `space-N`, `disk-N`.
    pub name: String,
    /// Seconds by which its loop iteration is overdue; 0: it is responsive, or sleeps.
    pub silent_s: f64,
    /// Age of its figures in seconds; 0: exact.
    pub age_s: f64,
}

/// A relay that watches the spaces of a domain. Its state is its own claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RelayStatus {
    /// Name of the domain.
    pub domain: String,
    /// Process id.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// Time since when its state is so, by its clock: seconds since 1970.
    pub since_s: u64,
    /// Its state in words; empty if it sends none, such as `kvtide events`.
    pub text: String,
}

/// Why the daemon is not ready although it is healthy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Unready {
    /// `starting`, `draining`, `socket_lost` or `drained`.
    pub reason: &'static str,
    /// Description in words.
    pub text: String,
}

impl Snapshot {
    /// Return the snapshot of a serving daemon without sessions.
    #[cfg(test)]
    pub fn empty() -> Snapshot {
        Snapshot { schema: SCHEMA, build: super::build::BUILD, pid: 1, stage: Stage::Serving, ..Snapshot::default() }
    }

    /// Read the answer to a request for `/v1/status`. The daemon may be of another version: missing fields are zero or empty, unknown
    /// ones are ignored. `address`: whom an error names.
    ///
    /// # Errors
    /// It is not a status, or has an unsupported schema version.
    pub fn read(address: &dyn fmt::Display, text: &str) -> Result<Snapshot, Error> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let other = |what: String| Error::NotADaemon { address: address.to_string(), what };
        let not = |error: serde_json::Error| other(format!("not a status ({error})"));
        match serde_json::from_str(text).map_err(not)? {
            Version { schema: SCHEMA } => serde_json::from_str(text).map_err(not),
            Version { schema } => Err(other(format!("unsupported schema version {schema} (supported: {SCHEMA})"))),
        }
    }

    /// Return true if it serves and is healthy.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.stage == Stage::Serving && self.unhealthy.is_empty()
    }

    /// Return the health in a few words.
    #[must_use]
    pub fn health(&self) -> String {
        let listed = |reasons: &[Reason]| match reasons {
            [] => None,
            [only] => Some(only.text.clone()),
            [first, rest @ ..] => Some(format!("{} (and {} more)", first.text, rest.len())),
        };
        if let Some(unhealthy) = listed(&self.unhealthy) {
            return unhealthy;
        }
        if self.stage == Stage::Starting && !self.progress.is_empty() {
            return self.progress.clone();
        }
        listed(&self.degraded).map_or_else(|| "healthy".into(), |degraded| format!("degraded: {degraded}"))
    }

    /// Return true if the figures of every thread are exact.
    pub fn is_exact(&self) -> bool {
        self.threads.iter().all(|thread| thread.age_s == 0.0)
    }

    /// Return true if engines can attach and the daemon is healthy.
    pub fn is_ready(&self) -> bool {
        self.unhealthy.is_empty() && self.unready().is_empty()
    }

    /// Return why the daemon is not ready.
    pub(crate) fn unready(&self) -> Vec<Unready> {
        let stage = match self.stage {
            Stage::Serving => None,
            Stage::Starting if self.progress.is_empty() => {
                Some(Unready { reason: "starting", text: "the daemon is starting".into() })
            }
            Stage::Starting => {
                Some(Unready { reason: "starting", text: format!("the daemon is starting: {}", self.progress) })
            }
            Stage::Draining => Some(Unready { reason: "draining", text: "the daemon is shutting down".into() }),
        };
        let lost = self.degraded.iter().filter(|reason| matches!(reason.what, Wrong::SocketLost { .. }));
        let socket = lost.map(|reason| Unready { reason: "socket_lost", text: reason.text.clone() });
        let text = "an operator drains the daemon: it takes no new sessions (kvtide drain --end admits them again)";
        let drained = self.drained.then(|| Unready { reason: "drained", text: text.into() });
        stage.into_iter().chain(socket).chain(drained).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_another_form_is_refused_and_other_fields_are_not() {
        let read = |text| Snapshot::read(&"here", text);
        let status = read(r#"{"schema": 1, "stage": "serving", "new": {"a": 1}}"#).unwrap();
        assert!(status.is_well() && status.host.is_none() && status.health() == "healthy");
        let news = r#"{"schema": 1, "unhealthy": [{"reason": "of_tomorrow", "b": 2, "text": "it rains"}]}"#;
        assert_eq!(read(news).unwrap().health(), "it rains");
        let error = read(r#"{"schema": 2, "pid": "of another type"}"#).unwrap_err().to_string();
        assert!(error.contains("version 2") && error.contains("supported: 1"), "{error}");
        assert!(read("<html>").unwrap_err().to_string().contains("not a status"));
    }

    /// What the daemon writes is what the tools read, down to each number.
    #[test]
    fn a_written_status_is_read_back() {
        let mut status = Snapshot { disks: vec![DiskStatus::default()], ..Snapshot::empty() };
        status.disks[0].classes[1].reads.bytes = 7;
        status.unhealthy.push(Wrong::SocketLost { why: "it went".into() }.into());
        let text = serde_json::to_string(&status).unwrap();
        let read = Snapshot::read(&"here", &text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert_eq!(read.unhealthy, status.unhealthy);
    }

    #[test]
    fn it_is_ready_once_it_serves() {
        let reasons = |stage| -> Vec<&str> {
            let snapshot = Snapshot { stage, ..Snapshot::empty() };
            assert_eq!(snapshot.is_ready(), snapshot.unready().is_empty());
            snapshot.unready().iter().map(|unready| unready.reason).collect()
        };
        assert_eq!(reasons(Stage::Starting), ["starting"]);
        assert_eq!(reasons(Stage::Serving), [""; 0]);
        assert_eq!(reasons(Stage::Draining), ["draining"]);
        let mut recovering = Snapshot { stage: Stage::Starting, ..Snapshot::empty() };
        recovering.progress = "disk 0 (/d): index log: 7 MiB read".into();
        assert_eq!(recovering.unready()[0].text, "the daemon is starting: disk 0 (/d): index log: 7 MiB read");
    }
}

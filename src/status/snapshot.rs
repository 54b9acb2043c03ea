//! Everything at one moment: what `/v1/status` tells and what metrics are made of.

use super::budget::WriteBudget;
use super::build::Build;
use super::health::{Reason, Wrong};
use super::http::HttpTotals;
use super::roll::Stage;
use super::wear::Wear;
use crate::host::HostStatus;
use crate::io::DiskStatus;
use crate::session::{SessionInfo, SessionTotals};
use crate::space::SpaceStatus;
use serde::Serialize;
use std::net::SocketAddr;

/// Version of the JSON form: raised when a field goes or changes its meaning, not when one is added.
pub(crate) const SCHEMA: u32 = 1;

/// How everything stands, as each thread last published it; [`Snapshot::threads`] says how long ago.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Snapshot {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Which program this is.
    pub build: Build,
    /// Its process.
    pub pid: u32,
    /// Seconds since it began.
    pub uptime_s: f64,
    /// How far it is in its life.
    pub stage: Stage,
    /// Where HTTP is served.
    pub http: Option<SocketAddr>,
    /// Counters of HTTP faults.
    pub http_totals: HttpTotals,
    /// What the start is busy with, in words; empty once it serves.
    pub progress: String,
    /// What is wrong; empty: healthy.
    pub unhealthy: Vec<Reason>,
    /// What the daemon goes on without; nobody is turned away for it, and a restart would not help.
    pub degraded: Vec<Reason>,
    /// The daemon's threads.
    pub threads: Vec<Thread>,
    /// What became of peers and sessions so far.
    pub session_totals: SessionTotals,
    /// Sessions, those included that linger.
    pub sessions: Vec<SessionInfo>,
    /// Spaces.
    pub spaces: Vec<SpaceStatus>,
    /// Host memory.
    pub host: Option<HostStatus>,
    /// Disks of the NVMe tier.
    pub disks: Vec<DiskStatus>,
    /// How they wear, in the same order.
    pub wear: Vec<Wear>,
    /// Bytes written over the last hour, and blocks lost because of `bytes_per_day`.
    pub write_budget: WriteBudget,
}

/// Whether a thread goes round, and how old its figures are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Thread {
    /// Its name: `control`, `host`, `space-N`, `disk-N`.
    pub name: String,
    /// Seconds by which its next round is overdue; 0: it goes round, or sleeps.
    pub silent_s: f64,
    /// Seconds since its figures were exact; 0: they are.
    pub age_s: f64,
}

/// Why the daemon is not ready though nothing is wrong with it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Unready {
    /// `starting`, `draining` or `socket_lost`.
    pub reason: &'static str,
    /// In words.
    pub text: String,
}

impl Snapshot {
    /// A daemon that serves and has nothing yet.
    #[cfg(test)]
    pub fn empty() -> Snapshot {
        Snapshot {
            schema: SCHEMA,
            build: super::build::BUILD,
            pid: 1,
            uptime_s: 0.0,
            stage: Stage::Serving,
            http: None,
            http_totals: HttpTotals::default(),
            progress: String::new(),
            unhealthy: Vec::new(),
            degraded: Vec::new(),
            threads: Vec::new(),
            session_totals: SessionTotals::default(),
            sessions: Vec::new(),
            spaces: Vec::new(),
            host: None,
            disks: Vec::new(),
            wear: Vec::new(),
            write_budget: WriteBudget::default(),
        }
    }

    /// Whether the figures of every thread are exact.
    pub fn is_exact(&self) -> bool {
        self.threads.iter().all(|thread| thread.age_s == 0.0)
    }

    /// Whether engines can attach and nothing is wrong.
    pub fn is_ready(&self) -> bool {
        self.unhealthy.is_empty() && self.unready().is_empty()
    }

    /// What is still to come before it is ready, or that it ends.
    pub fn unready(&self) -> Vec<Unready> {
        let stage = match self.stage {
            Stage::Serving => None,
            Stage::Starting if self.progress.is_empty() => {
                Some(Unready { reason: "starting", text: "the daemon is starting".into() })
            }
            Stage::Starting => {
                Some(Unready { reason: "starting", text: format!("the daemon is starting: {}", self.progress) })
            }
            Stage::Draining => Some(Unready { reason: "draining", text: "the daemon is ending".into() }),
        };
        let lost = self.degraded.iter().filter(|reason| matches!(reason.what, Wrong::SocketLost { .. }));
        let socket = lost.map(|reason| Unready { reason: "socket_lost", text: reason.text.clone() });
        stage.into_iter().chain(socket).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

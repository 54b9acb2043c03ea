//! Everything at one moment: what `/v1/status` tells and what metrics are made of.

use super::build::Build;
use super::health::Reason;
use super::roll::Stage;
use crate::host::HostStatus;
use crate::io::DiskStatus;
use crate::session::{SessionInfo, SessionTotals};
use crate::space::SpaceStatus;
use serde::Serialize;
use std::net::SocketAddr;

/// Version of the JSON form: raised when a field goes or changes its meaning, not when one is added.
pub(crate) const SCHEMA: u32 = 1;

/// How everything stands. What a thread did not tell in time is missing, and [`Snapshot::threads`] says so.
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
    /// What is wrong; empty: healthy.
    pub unhealthy: Vec<Reason>,
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
}

/// Whether a thread answers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Thread {
    /// Its name: `control`, `host`, `space-N`, `disk-N`.
    pub name: String,
    /// Seconds since it was asked without an answer; 0 if it answered.
    pub silent_s: f64,
}

impl Snapshot {
    /// Whether engines can attach and nothing is wrong.
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Serving && self.unhealthy.is_empty()
    }
}

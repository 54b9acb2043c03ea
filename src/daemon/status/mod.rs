//! The daemon's status: one [`Snapshot`] of all threads, and its health.
//!
//! ```text
//!  core threads, host thread, disks' threads ──publish──▶ snapshots, heartbeats
//!                                                               │ read
//!  HTTP, dumps ──ask──▶ health monitor ◀──────────────────────────┘
//!              ◀─Snapshot──
//! ```
//!
//! [`kvtide_rt::published`] defines how a thread publishes its figures and how they are read; readers never wait for the thread's
//! queue. The [`health_monitor`] combines the snapshots of all other threads, periodically and on request. A hanging thread is
//! therefore noticed and logged, and stops the pings to the supervisor's watchdog. [`health`] is a pure function of a snapshot.
//! This module does not depend on HTTP or metric names.

mod budget;
mod build;
mod dump;
mod endurance;
mod health;
mod health_monitor;
mod history;
mod snapshot;
mod tenants;
mod thread_registry;

pub use budget::{Spent, WriteBudget};
pub(crate) use dump::{replace, write};
pub(crate) use endurance::Bounds;
pub use endurance::DriveEndurance;
pub use health::{Reason, Wrong};
pub(crate) use health_monitor::{HealthMonitor, HealthMonitorThread};
pub(crate) use kvtide_http::counters::HttpCounters;
pub use snapshot::{RelayStatus, Snapshot};
pub(crate) use tenants::Quota;
pub use tenants::Tenant;
pub use thread_registry::{Reloads, Stage};
pub(crate) use thread_registry::{SpaceHandle, ThreadRegistry};

pub use crate::session::{SessionInfo, SessionTotals};
pub use crate::space::{SessionStatus, SpaceStatus};
pub use kvtide_nvme::{DiskStatus, LogReport, RecoveryReport};
pub use kvtide_tiering::evict::Curve;
pub use kvtide_tiering::{ByTier, Edge, Hits};

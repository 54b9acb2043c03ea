//! How the daemon stands: one [`Snapshot`] of everything, and what is wrong in it.
//!
//! ```text
//!  core threads, host thread, disks' threads ──publish──▶ snapshots, heartbeats
//!                                                               │ read
//!  HTTP, dumps ──ask──▶ watch thread ◀──────────────────────────┘
//!              ◀─Snapshot──
//! ```
//!
//! [`crate::published`] is how a thread publishes its figures and how they are read: no reader waits for a queue of the thread.
//! [`watch`] is a thread of its own that puts the snapshots of all others together, also when nobody wants to know: so a thread that hangs is
//! noticed, logged, and keeps the supervisor's watchdog from being fed. [`health`] is a pure function of a snapshot. The room knows
//! nothing of HTTP or of how metrics are named.

mod budget;
mod build;
mod dump;
mod health;
mod http;
mod roll;
mod snapshot;
mod watch;
mod wear;

pub(crate) use dump::{replace, write};
pub(crate) use http::HttpCounters;
pub(crate) use roll::{Roll, Stage};
pub(crate) use snapshot::Snapshot;
pub(crate) use watch::{Watch, WatchThread};
pub(crate) use wear::{Bounds, Wear};

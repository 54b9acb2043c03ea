//! How the daemon stands: one [`Snapshot`] of everything, and what is wrong in it.
//!
//! ```text
//!  HTTP, control ──ask──▶ watch thread ──letters──▶ core threads, host thread, control thread
//!                ◀─Snapshot──        ◀──answers──
//! ```
//!
//! [`watch`] is a thread of its own that asks all others, also when nobody asks it: so a thread that hangs is noticed, logged,
//! and keeps the supervisor's watchdog from being fed. No thread that it asks ever waits for it, and it waits for none beyond
//! a bound. [`health`] is a pure function of a snapshot. The room knows nothing of HTTP or of how metrics are named.

mod budget;
mod build;
mod dump;
mod health;
mod http;
mod question;
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

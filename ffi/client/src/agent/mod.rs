//! The agent: the part of kvtide that runs in the engine's process for the daemon. It owns tier 0, its page tables and its
//! copies.
//!
//! - [`protocol`]: the page-table protocol and its rules.
//! - `pump`: carries the daemon's jobs through the protocol.
//! - `copier`: the thread that runs the pump when no engine thread does.
//! - `port`: the rings of one channel.
//! - `session`: the state that channels, lanes and the copy thread share.
//! - `stream`: the device side of a lane.
//! - `errands`: background tasks that the copy thread does for lanes on a device.
//! - `attention`: what reading contracts need.
//!
//! Called by `crate::client`. Depends on the wire format, never on the daemon's decisions.

#[cfg(not(loom))]
pub mod attention;
#[cfg(not(loom))]
pub(crate) mod copier;
#[cfg(not(loom))]
pub(crate) mod counters;
#[cfg(all(not(loom), feature = "cuda"))]
pub(crate) mod errands;
#[cfg(not(loom))]
pub(crate) mod nudge;
#[cfg(not(loom))]
pub(crate) mod port;
pub mod protocol;
#[cfg(not(loom))]
pub(crate) mod pump;
#[cfg(not(loom))]
pub(crate) mod session;
#[cfg(all(not(loom), feature = "cuda"))]
pub(crate) mod stream;

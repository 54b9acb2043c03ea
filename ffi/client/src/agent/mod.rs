//! The agent: the part of kvtide that runs in the engine's process for the daemon. It owns tier 0, its page tables and its
//! copies.
//!
//! - [`protocol`]: the page-table protocol and its rules.
//! - `copy_loop`: carries the daemon's jobs through the protocol.
//! - `copier`: the thread that runs the copy loop when no engine thread does.
//! - `port`: the rings of one channel.
//! - `session`: the state that channels, lanes and the copy thread share.
//! - `stream`: the device side of a lane.
//! - `background_tasks`: background tasks that the copy thread does for lanes on a device.
//! - `attention`: what reading contracts need.
//!
//! Called by `crate::client`. Depends on the wire format, never on the daemon's decisions.

#[cfg(not(loom))]
pub mod attention;
#[cfg(all(not(loom), feature = "cuda"))]
pub(crate) mod background_tasks;
#[cfg(not(loom))]
pub(crate) mod copier;
#[cfg(not(loom))]
pub(crate) mod copy_loop;
#[cfg(not(loom))]
pub(crate) mod counters;
#[cfg(not(loom))]
pub(crate) mod port;
pub mod protocol;
#[cfg(not(loom))]
pub(crate) mod session;
#[cfg(all(not(loom), feature = "cuda"))]
pub(crate) mod stream;
#[cfg(not(loom))]
pub(crate) mod thread_waker;

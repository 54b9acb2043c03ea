//! The agent: what runs in the engine's process on the daemon's behalf. It owns tier 0, its page tables and its copies.
//!
//! [`protocol`] says what is right, `pump` carries the daemon's jobs through it, `copier` is the thread that pumps when nobody
//! else does, `port` is one channel's rings, `session` holds it all together; on a device, `stream` is a lane's side there and
//! `errands` what the copy thread does in a lane's stead; `attention` holds what reading contracts need. Called by `crate::client`; knows the wire, never
//! the daemon's decisions.

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

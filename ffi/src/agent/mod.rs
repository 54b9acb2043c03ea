//! The agent: what runs in the engine's process on the daemon's behalf. It owns tier 0, its page tables and its copies.
//!
//! [`protocol`] says what is right, `pump` carries the daemon's jobs through it, `copier` is the thread that pumps when nobody
//! else does, `port` is one channel's rings, `session` holds it all together. Called by `crate::client`; knows the wire, never
//! the daemon's decisions.

pub(crate) mod copier;
pub(crate) mod counters;
pub(crate) mod nudge;
pub(crate) mod port;
pub mod protocol;
pub(crate) mod pump;
pub(crate) mod session;

//! What the daemon and the relay share: HTTP with bounded connections and bodies, who may ask what, and the check of log levels.
//!
//! | module | contents |
//! | --- | --- |
//! | [`listener`] | a listener that bounds its connections in number and in time |
//! | [`bodies`] | bodies of requests, bounded in size, in time and in total |
//! | [`access`] | the operator's token; the check of `Host` |
//! | [`guard`] | a layer for all routes: the check of `Host`, and panics of handlers |
//! | [`counters`] | counters of HTTP faults |
//! | [`log`] | a check of log directives, a limit on repeated lines |
//!
//! Knows no route and no figure of either process.
#![forbid(unsafe_code)]

pub mod access;
pub mod bodies;
pub mod counters;
pub mod guard;
pub mod listener;
pub mod log;

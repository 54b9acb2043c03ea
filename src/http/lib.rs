//! Shared by the daemon and the relay: HTTP with bounded connections and bodies, access rules, audit lines, and their logs.
//!
//! | module | contents |
//! | --- | --- |
//! | [`listener`] | a listener that bounds its connections in number and in time |
//! | [`bodies`] | bodies of requests, bounded in size, in time and in total |
//! | [`access`] | the operator's token; the check of `Host` |
//! | [`guard`] | a layer for all routes: the check of `Host`, and panics of handlers |
//! | [`audit`] | the audit line of an action |
//! | [`counters`] | counters of HTTP faults |
//! | [`log`] | a check of log directives, a limit on repeated lines |
//!
//! Knows no route and no figure of either process.
#![forbid(unsafe_code)]

pub mod access;
pub mod audit;
pub mod bodies;
#[cfg(test)]
mod captured;
pub mod counters;
pub mod guard;
pub mod listener;
pub mod log;

//! HTTP of the daemon and of the relay: bounded connections and bodies, and who may ask what.
//!
//! | module | contents |
//! | --- | --- |
//! | [`listener`] | a listener that bounds its connections in number and in time |
//! | [`bodies`] | bodies of requests, bounded in size, in time and in total |
//! | [`access`] | the operator's token; the check of `Host` |
//! | [`guard`] | a layer for all routes: the check of `Host`, and panics of handlers |
//! | [`counters`] | counters of HTTP faults |
//!
//! Knows no route and no figure of either process.
#![forbid(unsafe_code)]

pub mod access;
pub mod bodies;
pub mod counters;
pub mod guard;
pub mod listener;

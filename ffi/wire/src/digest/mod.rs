//! Digests: summaries of a page's keys that stay in memory after the page has left.
//!
//! A digest is a [`sketch`]: it estimates which share of a query's attention the page would get, closely but without a guarantee,
//! for `approx` and for prefetch. It is built once, when a page seals. Agents and the tests of the kernels call this module. It
//! knows keys, queries and bytes; it does not know where pages are or how results are used.

mod float;
pub mod sketch;

/// Maximum channels of a KV head.
pub const CHANNELS_MAX: usize = 1024;

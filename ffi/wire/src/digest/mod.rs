//! Digests: summaries of a page's keys that stay in memory after the page has left.
//!
//! There are two forms. A [`bound`](mod@bound) gives a proven upper limit of the product of any query with these keys, for the
//! contract `bounded`. A [`sketch`] estimates which share of a query's attention the page would get, closely but without a
//! guarantee, for `approx` and for prefetch. Both are built once, when a page seals. Agents and the reference implementations of
//! the kernels call this module. It knows keys, queries and bytes; it does not know where pages are or how results are used.

pub mod bound;
mod float;
pub mod sketch;

pub use bound::{CHANNELS_MAX, bound, build, bytes};

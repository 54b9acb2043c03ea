//! Digests: what is kept of a page's keys after the page has left.
//!
//! Lives here: two forms, for two questions. [`bound`](mod@bound)s answer "what can no query's product with these keys exceed",
//! soundly, for the contract `bounded`; a [`sketch`] answers "how much of this query's attention would the page get", closely but
//! without promise, for `approx` and for prefetch. Both are built once, when a page seals. Agents call it, and so do the
//! references of the kernels; it knows keys, queries and bytes, and nothing of pages' places or of what is done with an answer.

pub mod bound;
mod float;
pub mod sketch;

pub use bound::{CHANNELS_MAX, bound, build, bytes};

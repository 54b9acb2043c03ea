//! Prefetch driven by attention: engines say what they read and what they expect to read, and the pages that the next steps of
//! `approx` sequences will read are brought to tier 0 ahead of them.
//!
//! - `scores`: what engines say, checked
//!
//! It decides nothing that changes a result: the agent masks what it did not find. It must not know engines, clocks or bytes.

mod scores;

pub(crate) use scores::Scores;

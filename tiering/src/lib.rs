//! The core: a virtual KV address space over tiers, sans-IO.
#![forbid(unsafe_code)]

pub mod api;

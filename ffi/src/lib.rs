//! The engine's side of kvtide: the agent (tier 0, page tables, copies), the Rust client, the C ABI.
//!
//! Used by engines. Talks to the daemon through `kvtide_wire` alone; never uses the daemon's crates.

pub mod agent;
pub mod capi;
pub mod client;
pub mod memory;
mod process;

pub use client::*;

//! The engine's side of kvtide: the agent (tier 0, page tables, copies) and the Rust client.
//!
//! Used by engines. Talks to the daemon through `kvtide_wire` alone; never uses the daemon's crates.

pub mod agent;
// Under loom only the agent's protocol is there: the rest stands on system calls.
#[cfg(not(loom))]
pub mod client;
#[cfg(all(not(loom), feature = "cuda"))]
pub mod cuda;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
pub mod process;

#[cfg(not(loom))]
pub use client::*;

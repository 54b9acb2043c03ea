//! Engine side of kvtide: the agent (tier 0, page tables, copies) and the Rust client.
//!
//! Engines use this crate. It talks to the daemon only through `kvtide_wire` and never uses the daemon's crates.

pub mod agent;
// Under loom only the agent's protocol is built: the other modules need system calls.
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

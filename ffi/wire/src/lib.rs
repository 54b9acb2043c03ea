//! Definitions shared by an engine's process and the daemon: `repr(C)` layouts, rings, handshake. No policy.
//!
//! `no_std` (with `alloc`) except for the module `os` (feature `std`), which holds the system calls that both sides need. Both
//! sides may call everything in this crate. The crate does not interpret requests.
#![cfg_attr(not(any(feature = "std", test, loom)), no_std)]

extern crate alloc;

pub mod digest;
pub mod entry;
pub mod error;
pub mod features;
pub mod geometry;
pub mod half;
pub mod hello;
pub mod job;
pub mod layout;
pub mod lists;
#[cfg(all(feature = "std", not(loom)))]
pub mod os;
pub mod request;
pub mod ring;
pub mod score;
pub mod score_areas;
pub mod status;
pub mod sync;
pub mod table;
pub mod trace;
pub mod wake;

pub use error::Error;

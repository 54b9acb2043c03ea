//! What an engine's process and the daemon share: `repr(C)` layouts, rings, handshake. No policy.
//!
//! `no_std` but for the module `os` (feature `std`), which holds the system calls that both sides need.
#![cfg_attr(not(any(feature = "std", test, loom)), no_std)]

pub mod entry;
pub mod geometry;
pub mod status;

//! The agent: what runs in the engine's process on the daemon's behalf.

pub mod protocol;

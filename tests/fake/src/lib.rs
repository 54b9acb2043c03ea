//! A fake of what the core runs in: engines with agents that execute jobs at once or on request, a node that grants host memory and
//! NVMe slots, disks and their logs. Frames hold content tags instead of bytes.
//!
//! Used by the core's tests and by fuzz targets; `bench core` and the replays use the page table, the jobs and the node. The simulator
//! has its own: it runs the shipped agent and encoding, and its copies take several events each.
#![allow(missing_docs, clippy::unwrap_used)] // most of it is for tests, where a wrong core panics

mod agent;
mod disk;
mod log;
mod node;
mod space;
mod world;

pub use agent::{Agent, PageTable, installed};
pub use disk::{Disk, Transfer};
pub use log::{Log, LogRequest, Recorded, Wanted};
pub use node::Node;
pub use space::{config, full, hashes};
pub use world::{Done, World};

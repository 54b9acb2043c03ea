//! A fake of what the core runs in: engines with agents that execute jobs at once or on request, a node that grants host memory and
//! NVMe slots, disks and their logs. Frames hold content tags instead of bytes.
//!
//! Used by the core's tests, by fuzz targets and, in parts, by `bench core` and the replays. The simulator has its own: it runs the
//! shipped agent and encoding, and its copies take several events each.
#![allow(missing_docs, clippy::unwrap_used, clippy::missing_panics_doc)] // all of it is for tests; a wrong core panics

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

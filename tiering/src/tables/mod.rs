//! Tables: what is where. Each keeps itself consistent, with private fields, and knows the others' entries by number only. They decide
//! nothing, and call nothing above them.
//!
//! - `host`: frames of host memory
//! - `disk`: slots of NVMe, transfers and log requests in flight
//! - `index`: cached blocks by hash, and the order in which they are evicted

pub(crate) mod disk;
pub(crate) mod host;
pub mod index;

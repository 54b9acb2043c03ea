//! Kernels: PTX that is compiled by the driver, its functions by name, launches.
//!
//! Called by the launchers of each kernel. Which kernels there are, and what their parameters mean, is not known here. Handles of
//! functions are made when a kernel is set up: the driver may load code then, which can wait for the device, and a stream that waits for
//! a word of ours would never let it go on.

mod launch;
mod load;

pub use launch::{Function, Shape};
pub(crate) use load::Loaded;
pub use load::{Module, Source};

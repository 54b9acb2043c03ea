//! Kernels: PTX compiled by the driver, functions by name, launches.
//!
//! Called by the launchers of each kernel. This module does not know the kernels or their parameters. Handles of functions are
//! created when a kernel is set up. The driver may then load code, which can wait for the device, and a stream that waits for a
//! word of kvtide would block it for ever.

mod launch;
mod load;

pub use launch::{Function, Shape};
pub(crate) use load::Loaded;
pub use load::{Module, Source};

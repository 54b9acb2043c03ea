//! Measurements that need only a device: the rates of copies and kernels compared with the device's best. For `kvtide bench gpu`,
//! behind the feature `measure`; engines do not link it.
//!
//! All functions are safe: they allocate and free their buffers. Ratios are of values measured in turns in one run. Targets are not
//! defined here.

mod attention;
mod batches;
mod copies;
mod interfere;
mod memory;
mod timing;

pub use attention::{Attended, attention};
pub use batches::{Case, error_against_f64};
pub use copies::{Copies, Forced, Kind, copies, forced};
pub use interfere::{Interference, interference};

/// Size of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Large enough to measure a GPU, and not its caches or launches.
    Full,
    /// Small enough for the stand-in: proves only that everything runs.
    Tiny,
}

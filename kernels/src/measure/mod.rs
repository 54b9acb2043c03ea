//! Measurements that need a device and nothing else: what its copies and kernels reach beside what it can do at best. For
//! `kvtide bench gpu`, behind the feature `measure`; no engine links it.
//!
//! Everything is safe to call: buffers are made here, and given back. Ratios are of things measured in turns in one run. Which
//! ratio is good enough is not known here.

mod attention;
mod batches;
mod copies;
mod interfere;
mod memory;
mod timing;

pub use attention::{Attended, attention};
pub use batches::{Case, error_against_f64};
pub use copies::{Copies, Kind, copies};
pub use interfere::{Interference, interference};

/// How large things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So large that a GPU is measured, and not its caches or its launches.
    Full,
    /// So small that a stand-in can carry it: it proves that everything runs.
    Tiny,
}

//! Attention kernels against their f64 reference: on a real GPU, or on the stand-in driver where there is none.
//!
//! Inputs are fresh in every run (`KVTIDE_SEED=n` repeats one; a failure prints its seed), outputs are poisoned before, frames hold NaN
//! wherever no token is.

mod case;
#[path = "../common/mod.rs"]
mod common;
mod mass;
mod passes;
mod refusals;
mod whole;

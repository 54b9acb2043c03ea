//! The kernels over pages compared with their references: on a real GPU, or on the stand-in driver if there is none.
//!
//! Inputs are new in every run (`KVTIDE_SEED=n` repeats one; a failure prints its seed); outputs are poisoned before.

mod append;
mod boundary;
#[path = "../common/mod.rs"]
mod common;
mod crc;
mod gather;
mod refusals;
mod rig;
mod sketch;

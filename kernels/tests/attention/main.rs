//! Attention kernels compared with their f64 reference: on a real GPU, or on the stand-in driver if there is none.
//!
//! Inputs are new in every run (`KVTIDE_SEED=n` repeats one; a failure prints its seed). Outputs are poisoned before; frames hold
//! NaN wherever there is no token.

mod case;
#[path = "../common/mod.rs"]
mod common;
mod mass;
mod passes;
mod refusals;
mod whole;

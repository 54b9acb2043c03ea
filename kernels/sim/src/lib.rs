//! A stand-in for the CUDA driver on machines without a GPU: streams are threads, device memory is memory, kernels are the shipped
//! sources compiled for the CPU. For tests only: nothing ships it, and nothing measured on it says anything about a GPU.
//!
//! The cdylib is the driver, under the name by which a driver is loaded; as a Rust library it gives tests the few functions of
//! [`install`]. It does what the CUDA driver's reference says, and where that leaves room it does what hurts: streams run at
//! random speeds, copies of a batch in a random order, fresh memory holds rubbish. What only happens to work on a GPU (memory
//! that was not registered, a stream of no context) is an error.
//!
//! Variables: `KVTIDE_SIM_SEED` (a number), `KVTIDE_SIM_DEVICES` (1 to 8), `KVTIDE_SIM_MEMORY` (bytes of each), `KVTIDE_SIM_VERSION`
//! (12080), `KVTIDE_SIM_FAULT` (`CALL:N=CODE`, by commas: the Nth call, or with `*` every one, returns CODE).

mod api;
mod code;
mod context;
mod emulator;
mod event;
mod fault;
mod install;
mod memory;
mod module;
mod rng;
mod settings;
mod stream;

pub use install::{install, standing_in, without};

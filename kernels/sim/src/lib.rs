//! A stand-in for the CUDA driver on machines without a GPU: streams are threads, device memory is host memory, kernels are the
//! shipped sources compiled for the CPU. For tests only: it is not shipped, and its timings say nothing about a GPU.
//!
//! The cdylib is the driver, under the name by which a driver is loaded; as a Rust library it gives tests the few functions of
//! [`install`]. It follows the CUDA driver's reference, and where the reference leaves freedom it chooses the most difficult
//! behaviour: streams run at random speeds, copies of a batch in a random order, fresh memory holds garbage. Usage that works on a
//! GPU only by accident (memory that was not registered, a stream of no context) is an error.
//!
//! Variables: `KVTIDE_SIM_SEED` (a number), `KVTIDE_SIM_DEVICES` (1 to 8), `KVTIDE_SIM_MEMORY` (bytes of each),
//! `KVTIDE_SIM_VERSION` (12080), `KVTIDE_SIM_STRICT` (1: a call that waits for the device fails if a stream waits for a word),
//! `KVTIDE_SIM_FAULT` (`CALL:N=CODE`, separated by commas: the Nth call, or with `*` every one,
//! returns CODE).

mod api;
mod capture;
mod code;
mod context;
mod emulator;
mod event;
mod fault;
mod graph;
mod install;
mod memory;
mod module;
mod order;
mod rng;
mod settings;
mod stream;

pub use graph::{Graph, captured};
pub use install::{driver_function, install, standing_in, without};

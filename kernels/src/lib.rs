//! CUDA for the engine's side: driver probe, device memory, streams, copies, and the kernels that read KV through page tables. And
//! attention over pages on the CPU ([`cpu`]).
//!
//! Only `kvtide-client` uses this crate, behind its feature `cuda`. It is the only user of cudarc, and uses only its types: the
//! driver's functions are found by [`Driver::probe`], so a machine without a driver gets an error value, never a panic. It uses the
//! wire's layouts and depends neither on the daemon nor on the agent's protocol.
// Loom models run no kernel, and the system calls below are not built for them.
#![cfg(not(loom))]

pub mod copy;
pub mod cpu;
pub mod driver;
pub mod error;
pub mod launch;
#[cfg(feature = "measure")]
pub mod measure;
pub mod memory;
pub mod module;
pub mod params;
pub mod reference;
pub mod stream;

pub use copy::{Copier, Way};
pub use driver::{Device, DeviceInfo, Driver, Report, Trial, Uuid, Version, Which, Works};
pub use error::{Error, Result};
pub use memory::{Arena, Buffer, HostRegion, Pinned};
pub use module::{Function, Module, Shape, Source};
pub use stream::{Event, Priority, Stream, WaitWord};

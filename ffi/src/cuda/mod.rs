//! What an engine on CUDA uses beside its session: the device, its memory, streams, copies, and the kernels.
//!
//! Mostly re-exports; [`Attend`] launches what a small engine needs, in safe Rust. A session on a device: [`Options::device`](crate::Options), [`Lane::bind`](crate::Lane::bind).

mod attend;

pub use attend::{Attend, AttendOptions, Rows};

pub use crate::client::{
    batch::{Batch, BatchDevice, BatchOptions},
    lane::LaneDevice,
};
#[cfg(feature = "measure")]
pub use kvtide_kernels::measure;
pub use kvtide_kernels::{
    Arena, Buffer, Copier, Device, DeviceInfo, Driver, Error, Event, HostRegion, Pinned, Priority, Report, Stream,
    Uuid, Version, WaitWord, Way, Which, Works, copy, launch, params, reference,
};

//! What an engine on CUDA uses beside its session: the device, its memory, streams, copies, and the kernels.
//!
//! Re-exports: nothing is done here. A session on a device: [`Options::device`](crate::Options), [`Lane::bind`](crate::Lane::bind).

pub use crate::client::{
    batch::{Batch, BatchDevice, BatchOptions},
    lane::LaneDevice,
};
#[cfg(feature = "measure")]
pub use kvtide_kernels::measure;
pub use kvtide_kernels::{
    Arena, Buffer, Copier, Device, DeviceInfo, Driver, Error, Event, HostRegion, Pinned, Priority, Report, Stream,
    Uuid, Version, Way, Which, Works, copy, launch, params, reference,
};

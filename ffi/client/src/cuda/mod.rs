//! CUDA support for engines, beside the session: the device, its memory, streams, copies, and the kernels.
//!
//! [`Attend`] is a safe attention for small engines. The rest is re-exported: an engine launches kernels itself, on its lane's stream.
//! For a session on a device see [`Options::device`](crate::Options) and [`Lane::bind`](crate::Lane::bind).

mod attend;
mod launches;
mod picked;

pub use attend::{Attend, AttendOptions, Rows};

pub use crate::client::{
    batch::{Batch, BatchDevice, BatchOptions},
    lane::LaneDevice,
};
#[cfg(feature = "measure")]
pub use kvtide_kernels::measure;
pub use kvtide_kernels::{
    Arena, Buffer, Copier, Device, DeviceInfo, Driver, Error, Event, HostRegion, Pinned, Priority, Report, Stream,
    Uuid, Version, WaitWord, Way, Which, Works, copy, cpu, launch, params, reference,
};

//! CUDA support for engines, beside the session: the device, its memory, streams, copies, and the kernels.
//!
//! [`Kernels`] and [`LaneAttention`] launch on a lane's stream over the session's pages. [`Attend`] is a safe attention for small
//! engines. The rest is re-exported. For a session on a device see [`Options::device`](crate::Options) and
//! [`Lane::bind`](crate::Lane::bind).

mod attend;
mod launches;
mod picked;

pub use attend::{Attend, AttendOptions, Rows};
pub use launches::{Kernels, LaneAttention, NewRows, Queries};

pub use crate::client::{
    batch::{Batch, BatchDevice, BatchOptions},
    lane::LaneDevice,
};
pub use crate::memory::cuda::error as device_error;
#[cfg(feature = "measure")]
pub use kvtide_kernels::measure;
pub use kvtide_kernels::{
    Arena, Buffer, Copier, Device, DeviceInfo, Driver, Error, Event, HostRegion, Pinned, Priority, Report, Stream,
    Uuid, Version, WaitWord, Way, Which, Works, copy, cpu, launch, params, reference,
};

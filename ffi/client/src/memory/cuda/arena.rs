//! Tier 0 on a CUDA device: one arena for each size class, or one that the engine allocated.

use super::{error, mapped::MappedFrames};
use crate::{
    Error, Result,
    agent::protocol::Geometry,
    client::options::DeviceChoice,
    memory::frames::{ClassRoom, FrameMap},
};
use kvtide_kernels::{Arena, Device};
use std::sync::Arc;

/// Default chunk of an arena: the smallest amount that is allocated, or freed when tier 0 shrinks.
const CHUNK_BYTES: u64 = 64 << 20;
/// Alignment of classes within an engine's memory, the same as that of device allocations.
const GIVEN_ALIGN: u64 = 256;

/// Device memory of a session's frames.
#[derive(Debug)]
pub(in crate::memory) struct DeviceMemory {
    device: Arc<Device>,
    /// One for each class, or the engine's for all classes.
    arenas: Vec<Arena>,
    given: bool,
    base: u64,
    bytes: u64,
    /// Present if the session has mapped frames.
    mapped_frames: Option<MappedFrames>,
}

fn rooms(geometry: &Geometry) -> impl Iterator<Item = ClassRoom> + '_ {
    let room = |(_, stride, frames_max)| ClassRoom { offset: 0, first_frame: 0, frames_max, stride };
    (0..geometry.classes()).filter_map(move |class| geometry.class(class).map(room))
}

impl DeviceMemory {
    /// Reserve room for a geometry's frames. The agent's own arenas have no memory yet.
    pub fn new(device: &Arc<Device>, geometry: &Geometry, choice: &DeviceChoice) -> Result<(DeviceMemory, FrameMap)> {
        let (mut memory, frames) = match *choice {
            DeviceChoice::GivenCuda { pointer, bytes, .. } => Self::given(device, geometry, pointer, bytes)?,
            DeviceChoice::Cuda { chunk_bytes, .. } => Self::own(device, geometry, chunk_bytes)?,
            DeviceChoice::Cpu => {
                return Err(Error::call("make tier 0 on a device", 0, kvtide_wire::status::Status::Internal));
            }
        };
        let count = geometry.classes() * geometry.mapped_frames() as usize;
        memory.mapped_frames = (count > 0).then(|| MappedFrames::new(device, count)).transpose()?;
        Ok((memory, frames))
    }

    fn own(device: &Arc<Device>, geometry: &Geometry, chunk_bytes: u64) -> Result<(DeviceMemory, FrameMap)> {
        let chunk = if chunk_bytes == 0 { CHUNK_BYTES } else { chunk_bytes };
        let reserve = |room: ClassRoom| Arena::reserve(device, room.bytes().max(1), chunk);
        let arenas = rooms(geometry).map(reserve).collect::<kvtide_kernels::Result<Vec<_>>>();
        let arenas = arenas.map_err(|e| error("reserve tier 0", e))?;
        let base = arenas.iter().map(Arena::base).min().unwrap_or(0);
        let end = arenas.iter().map(|a| a.base() + a.bytes_max()).max().unwrap_or(0);
        let mut starts = arenas.iter().map(|arena| arena.base() - base);
        let frames = FrameMap::new(geometry, |_| Ok::<u64, Error>(starts.next().unwrap_or(0)))?;
        let (device, bytes) = (Arc::clone(device), end - base);
        Ok((DeviceMemory { device, arenas, given: false, base, bytes, mapped_frames: None }, frames))
    }

    fn given(device: &Arc<Device>, geometry: &Geometry, pointer: u64, bytes: u64) -> Result<(DeviceMemory, FrameMap)> {
        let bad = |why: String| Error::Options { option: "device", why };
        if !pointer.is_multiple_of(GIVEN_ALIGN) {
            return Err(bad(format!("memory at {pointer:#x} is not aligned to {GIVEN_ALIGN} bytes")));
        }
        let mut end = 0u64;
        let frames = FrameMap::new(geometry, |room| {
            let offset = end.next_multiple_of(GIVEN_ALIGN);
            end = offset.saturating_add(room.bytes());
            Ok::<u64, Error>(offset)
        })?;
        if end > bytes {
            return Err(bad(format!("tier 0 needs {end} bytes, but {bytes} are given")));
        }
        let arena = Arena::given(device, pointer, bytes).map_err(|e| error("use the engine's memory for tier 0", e))?;
        let (device, arenas) = (Arc::clone(device), vec![arena]);
        let memory = DeviceMemory { device, arenas, given: true, base: pointer, bytes, mapped_frames: None };
        Ok((memory, frames))
    }

    /// Return the device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Return the table of mapped frames, if there is one.
    pub fn mapped_frames(&self) -> Option<&MappedFrames> {
        self.mapped_frames.as_ref()
    }

    /// Return the device address of the first byte.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Return the length of the address range from the first byte to the last, gaps between classes included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Allocate or free memory so that the first `frames` frames of a class have memory. Memory of the engine stays unchanged.
    pub fn resize(&self, class: usize, room: &ClassRoom, frames: u32) -> Result<()> {
        let Some(arena) = self.arenas.get(class).filter(|_| !self.given) else { return Ok(()) };
        let bytes = room.bytes_of(frames);
        let resized = if bytes > arena.committed() { arena.grow_to(bytes) } else { arena.shrink_to(bytes) };
        resized.map(|_| ()).map_err(|e| error("resize tier 0", e))
    }
}

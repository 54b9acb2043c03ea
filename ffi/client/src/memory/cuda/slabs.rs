//! Host slabs as a device sees them: mapped as on the CPU, and registered piece by piece when a copy first accesses a piece.

use super::error;
use crate::{
    Error, Result,
    memory::slabs::{HostSlab, map_slab},
};
use kvtide_kernels::{Device, HostRegion};
use kvtide_wire::hello::Slab;
use std::{mem::ManuallyDrop, os::fd::OwnedFd, sync::Arc, time::Duration};

/// Approximate size of a piece: at the usual quarter of a second for a GiB, registering one blocks the copy loop for 16 ms.
const PIECE_BYTES: usize = 64 << 20;
/// Alignment of registered ranges.
const PAGE: usize = 4096;

/// A slab and its registered pieces.
pub(super) struct DeviceSlab {
    /// Registrations must be dropped before the slab is unmapped.
    pieces: ManuallyDrop<Vec<HostRegion>>,
    slab: ManuallyDrop<HostSlab>,
    /// Number of whole frames in a piece.
    piece_frames: u32,
}

/// Registration of a look-up's frame, and the memory that the look-up itself registered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Registered {
    pub region: u64,
    pub bytes: u64,
    pub took: Duration,
}

impl DeviceSlab {
    pub fn new(device: &Arc<Device>, slab: &Slab, memfd: OwnedFd) -> Result<DeviceSlab> {
        let slab = map_slab(slab, memfd)?;
        let piece_frames = piece_frames(slab.stride);
        let start = slab.start().ok_or_else(|| Error::call("map host slab", 0, kvtide_wire::status::Status::System))?;
        let mut pieces = Vec::new();
        let piece_bytes = piece_frames as usize * slab.stride;
        for from in (0..slab.bytes()).step_by(piece_bytes) {
            let bytes = piece_bytes.min(slab.bytes() - from);
            // SAFETY: the range lies in the slab's mapping, which outlives the regions: `drop` and `forget` keep that order.
            let region = unsafe { HostRegion::new(device, start.wrapping_add(from), bytes) };
            pieces.push(region.map_err(|e| error("register a host slab", e))?);
        }
        Ok(DeviceSlab { pieces: ManuallyDrop::new(pieces), slab: ManuallyDrop::new(slab), piece_frames })
    }

    pub fn holds(&self, class: usize, slot: u32) -> bool {
        self.slab.class == class && slot < self.slab.frames
    }

    pub fn class(&self) -> usize {
        self.slab.class
    }

    /// Return the device address of a host frame, its registration, and the memory that had to be registered for it. `None`: no such
    /// frame.
    pub fn frame(&self, slot: u32) -> Option<kvtide_kernels::Result<(u64, Registered)>> {
        if slot >= self.slab.frames {
            return None;
        }
        let piece = self.pieces.get((slot / self.piece_frames) as usize)?;
        let fresh = piece.took().is_none();
        let within = (slot % self.piece_frames) as usize * self.slab.stride;
        Some(piece.address().map(|address| {
            let took = piece.took().filter(|_| fresh);
            let bytes = if fresh { piece.bytes() as u64 } else { 0 };
            (address + within as u64, Registered { region: address, bytes, took: took.unwrap_or_default() })
        }))
    }

    /// Leave everything as it is: a device may still access it, or it belongs to the parent process.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for DeviceSlab {
    fn drop(&mut self) {
        // SAFETY: dropped once, here, and nothing uses them afterwards; the registrations are dropped before the mapping.
        unsafe {
            ManuallyDrop::drop(&mut self.pieces);
            ManuallyDrop::drop(&mut self.slab);
        }
    }
}

/// Return the frames of a piece: pieces begin at page boundaries, and no frame is split.
fn piece_frames(stride: usize) -> u32 {
    // The largest power of two that divides the stride, at most a page.
    let even = (1usize << stride.trailing_zeros().min(12)).min(PAGE);
    let step = PAGE / even;
    let frames = (PIECE_BYTES / stride).max(1).next_multiple_of(step);
    u32::try_from(frames).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_begin_at_pages_and_cut_no_frame() {
        for stride in [64, 128, 192, 1024, 4096, 4160, 65536, 65600, 1 << 20, (1 << 20) + 64, 1 << 30] {
            let frames = piece_frames(stride) as usize;
            assert!(frames > 0 && (frames * stride).is_multiple_of(PAGE), "{stride}");
            assert!(frames * stride <= PIECE_BYTES.max(64 * stride) + 64 * stride, "{stride}: {frames}");
        }
    }
}

//! Host slabs as a device sees them: mapped as on the CPU, and registered as a whole.

use super::error;
use crate::{
    Error, Result,
    memory::{
        Counts,
        slabs::{HostSlab, map_slab},
    },
};
use kvtide_kernels::{Device, HostRegion};
use kvtide_wire::{hello::Slab, status::Status};
use std::{mem::ManuallyDrop, os::fd::OwnedFd, sync::Arc};

/// A slab and its registration.
pub(super) struct DeviceSlab {
    /// Must be dropped before the slab is unmapped.
    region: ManuallyDrop<HostRegion>,
    slab: ManuallyDrop<HostSlab>,
    /// Device address; `None`: not registered yet.
    address: Option<u64>,
}

impl DeviceSlab {
    pub fn new(device: &Arc<Device>, slab: &Slab, memfd: OwnedFd) -> Result<DeviceSlab> {
        let slab = map_slab(slab, memfd)?;
        let start = slab.start().ok_or_else(|| Error::call("map host slab", 0, Status::System))?;
        // SAFETY: the range is the slab's mapping, which outlives the region: `drop` and `forget` keep that order.
        let region = unsafe { HostRegion::new(device, start, slab.bytes()) };
        let region = region.map_err(|e| error("register a host slab", e))?;
        Ok(DeviceSlab { region: ManuallyDrop::new(region), slab: ManuallyDrop::new(slab), address: None })
    }

    /// Return the device address. The first call registers the slab and counts that; if it fails, a later call tries again.
    pub fn address(&mut self, counts: &mut Counts) -> kvtide_kernels::Result<u64> {
        if let Some(address) = self.address {
            return Ok(address);
        }
        let address = self.region.address()?;
        let took = self.region.took().unwrap_or_default();
        counts.registered_bytes += self.region.bytes() as u64;
        counts.registered_ns += u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.address = Some(address);
        Ok(address)
    }

    pub fn holds(&self, class: usize, slot: u32) -> bool {
        self.slab.class == class && slot < self.slab.frames
    }

    pub fn class(&self) -> usize {
        self.slab.class
    }

    /// Return the offset of a host frame. `None`: no such frame.
    pub fn offset(&self, slot: u32) -> Option<u64> {
        (slot < self.slab.frames).then(|| u64::from(slot) * self.slab.stride as u64)
    }

    /// Leave everything as it is: a device may still access it, or it belongs to the parent process.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for DeviceSlab {
    fn drop(&mut self) {
        // SAFETY: dropped once, here, and nothing uses them afterwards; the registration is dropped before the mapping.
        unsafe {
            ManuallyDrop::drop(&mut self.region);
            ManuallyDrop::drop(&mut self.slab);
        }
    }
}

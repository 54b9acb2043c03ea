//! Virtual memory of a device: a range of addresses, and physical memory mapped into it chunk by chunk.

use crate::{Device, Error, Result, driver::Code};
use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemGenericAllocationHandle,
    CUmemLocation, CUmemLocationType,
};
use std::{ffi::c_ulonglong, sync::Arc};

type Handle = CUmemGenericAllocationHandle;

/// The required functions of the driver, all present.
#[derive(Clone, Copy)]
struct Calls {
    // SAFETY: types only; each call explains why it is sound.
    reserve: unsafe extern "C" fn(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong) -> Code,
    free: unsafe extern "C" fn(CUdeviceptr, usize) -> Code,
    create: unsafe extern "C" fn(*mut Handle, usize, *const CUmemAllocationProp, c_ulonglong) -> Code,
    release: unsafe extern "C" fn(Handle) -> Code,
    map: unsafe extern "C" fn(CUdeviceptr, usize, usize, Handle, c_ulonglong) -> Code,
    unmap: unsafe extern "C" fn(CUdeviceptr, usize) -> Code,
    access: unsafe extern "C" fn(CUdeviceptr, usize, *const CUmemAccessDesc, usize) -> Code,
    granularity: unsafe extern "C" fn(*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags) -> Code,
}

/// A reserved range of a device's addresses.
pub(crate) struct Range {
    device: Arc<Device>,
    calls: Calls,
    base: u64,
    bytes: u64,
    granularity: u64,
}

impl Range {
    /// Reserve addresses without memory. The size is rounded up to the device's mapping granularity.
    pub fn reserve(device: &Arc<Device>, bytes: u64) -> Result<Self> {
        let calls = calls(device)?;
        let _entered = device.enter()?;
        let mut granularity = 0;
        let recommended = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        // SAFETY: writes one size; the properties are complete.
        let code = unsafe { (calls.granularity)(&mut granularity, &properties(device), recommended) };
        device.check(code, "cuMemGetAllocationGranularity", || device.info().label())?;
        let granularity = granularity as u64;
        let whole = (granularity > 0).then(|| super::round_up(bytes, granularity)).flatten().filter(|&b| b > 0);
        let bytes = whole.ok_or_else(|| {
            Error::invalid("address range", format!("{bytes} bytes by {granularity} cannot be reserved"))
        })?;
        let mut base = 0;
        // SAFETY: writes one address.
        let code = unsafe { (calls.reserve)(&mut base, bytes as usize, 0, 0, 0) };
        device.check_memory(code, "cuMemAddressReserve", bytes, || device.info().label())?;
        Ok(Self { device: Arc::clone(device), calls, base, bytes, granularity })
    }

    /// Return the start address.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Return the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Return the mapping granularity of the device in bytes.
    pub fn granularity(&self) -> u64 {
        self.granularity
    }

    /// Allocate memory and map it at an offset; all or nothing. Both are multiples of the granularity, within the range, where
    /// nothing is mapped.
    pub fn map(&self, offset: u64, bytes: u64) -> Result<()> {
        let (device, calls, at) = (&self.device, &self.calls, self.base + offset);
        let on = || format!("{bytes} bytes at {at:#x} of {}", device.info().label());
        let _entered = device.enter()?;
        let mut handle = 0;
        // SAFETY: writes one handle; the properties are complete.
        let code = unsafe { (calls.create)(&mut handle, bytes as usize, &properties(device), 0) };
        device.check_memory(code, "cuMemCreate", bytes, on)?;
        // SAFETY: the range is reserved, and nothing is mapped there: the caller's bookkeeping.
        let code = unsafe { (calls.map)(at, bytes as usize, 0, handle, 0) };
        // The mapping keeps the memory; without a mapping it is freed here.
        // SAFETY: created above, released once.
        let released = unsafe { (calls.release)(handle) };
        device.check_memory(code, "cuMemMap", bytes, on)?;
        let access =
            CUmemAccessDesc { location: place(device), flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        // SAFETY: mapped above; one descriptor.
        let code = unsafe { (calls.access)(at, bytes as usize, &access, 1) };
        if code != Code::SUCCESS {
            // The first failure is the one to report.
            let _ = self.unmap(offset, bytes);
        }
        device.check_memory(code, "cuMemSetAccess", bytes, on)?;
        device.check(released, "cuMemRelease", on)
    }

    /// Unmap and free the memory of one earlier `map`. The device must not use it any more.
    pub fn unmap(&self, offset: u64, bytes: u64) -> Result<()> {
        let at = self.base + offset;
        let _entered = self.device.enter()?;
        // SAFETY: exactly the range of one `map`, by the caller's bookkeeping. The caller guarantees that all work on it has ended.
        let code = unsafe { (self.calls.unmap)(at, bytes as usize) };
        self.device.check(code, "cuMemUnmap", || format!("{bytes} bytes at {at:#x} of {}", self.device.info().label()))
    }
}

impl Drop for Range {
    /// Free the addresses. The owner has unmapped everything.
    fn drop(&mut self) {
        if !self.device.is_ours() {
            return;
        }
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: reserved here, freed once.
            let _ = unsafe { (self.calls.free)(self.base, self.bytes as usize) };
        }
    }
}

/// Return the driver's functions, or an error with the missing ones.
fn calls(device: &Device) -> Result<Calls> {
    let api = device.api();
    let all = || {
        Some(Calls {
            reserve: api.cuMemAddressReserve?,
            free: api.cuMemAddressFree?,
            create: api.cuMemCreate?,
            release: api.cuMemRelease?,
            map: api.cuMemMap?,
            unmap: api.cuMemUnmap?,
            access: api.cuMemSetAccess?,
            granularity: api.cuMemGetAllocationGranularity?,
        })
    };
    all().ok_or_else(|| Error::Unsupported {
        what: format!("memory that grows, on {}", device.info().label()),
        needs: "the driver lacks functions of its virtual memory management (cuMemCreate, cuMemMap and others)"
            .to_owned(),
    })
}

fn place(device: &Device) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.info().ordinal as i32 }
}

/// Return the properties of plain memory of this device, shared with no other process.
fn properties(device: &Device) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: place(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

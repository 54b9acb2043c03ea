//! Virtual memory of a device: a range of addresses, and physical memory mapped into it chunk by chunk.

use crate::{Device, Error, Result, driver::Code};
use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemGenericAllocationHandle,
    CUmemLocation, CUmemLocationType,
};
use std::{ffi::c_ulonglong, sync::Arc};

type Handle = CUmemGenericAllocationHandle;

/// The functions of the driver that are needed, all there.
#[derive(Clone, Copy)]
struct Calls {
    // SAFETY: types only; why a call is sound stands where it is called.
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
    /// Reserves addresses: no memory yet. The size is rounded up to what the device maps by.
    pub fn reserve(device: &Arc<Device>, bytes: u64) -> Result<Self> {
        let calls = calls(device)?;
        let _entered = device.enter()?;
        let mut granularity = 0;
        let recommended = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        // SAFETY: writes one size; the properties are whole.
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

    /// Where it begins.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Its size, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the device maps by, bytes.
    pub fn granularity(&self) -> u64 {
        self.granularity
    }

    /// Takes memory and maps it at an offset; all or nothing. Multiples of the granularity, within the range, where nothing is.
    pub fn map(&self, offset: u64, bytes: u64) -> Result<()> {
        let (device, calls, at) = (&self.device, &self.calls, self.base + offset);
        let on = || format!("{bytes} bytes at {at:#x} of {}", device.info().label());
        let _entered = device.enter()?;
        let mut handle = 0;
        // SAFETY: writes one handle; the properties are whole.
        let code = unsafe { (calls.create)(&mut handle, bytes as usize, &properties(device), 0) };
        device.check_memory(code, "cuMemCreate", bytes, on)?;
        // SAFETY: the range is reserved, and nothing is mapped there: the caller's bookkeeping.
        let code = unsafe { (calls.map)(at, bytes as usize, 0, handle, 0) };
        // The mapping keeps the memory; without one it goes back here.
        // SAFETY: created above, released once.
        let released = unsafe { (calls.release)(handle) };
        device.check_memory(code, "cuMemMap", bytes, on)?;
        let access =
            CUmemAccessDesc { location: place(device), flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        // SAFETY: mapped above; one descriptor.
        let code = unsafe { (calls.access)(at, bytes as usize, &access, 1) };
        if code != Code::SUCCESS {
            // The first failure is the one to tell of.
            let _ = self.unmap(offset, bytes);
        }
        device.check_memory(code, "cuMemSetAccess", bytes, on)?;
        device.check(released, "cuMemRelease", on)
    }

    /// Gives the memory of one earlier `map` back. Nothing on the device may use it any more.
    pub fn unmap(&self, offset: u64, bytes: u64) -> Result<()> {
        let at = self.base + offset;
        let _entered = self.device.enter()?;
        // SAFETY: exactly what one `map` mapped: the caller's bookkeeping. Whoever enqueued work on it vouched that it has ended.
        let code = unsafe { (self.calls.unmap)(at, bytes as usize) };
        self.device.check(code, "cuMemUnmap", || format!("{bytes} bytes at {at:#x} of {}", self.device.info().label()))
    }
}

impl Drop for Range {
    /// The owner has unmapped everything.
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

/// The driver's functions, or which are missing.
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

/// Plain memory of this device, shared with no other process.
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

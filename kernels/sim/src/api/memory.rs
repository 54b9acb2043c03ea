//! Memory.

use super::{check, driver, put, queue};
use crate::{
    code::{self, Code},
    context,
    memory::{self, Kind},
    stream::Taken,
};
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: u32 = 1;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Location {
    kind: u32,
    id: c_int,
}

#[repr(C)]
pub struct Properties {
    kind: u32,
    handles: u32,
    location: Location,
    win32: *mut c_void,
    flags: [u8; 8],
}

#[repr(C)]
pub struct Access {
    location: Location,
    flags: u32,
}

/// Check that the request is for plain device memory; return the device.
fn of_device(properties: *const Properties) -> Result<usize, Code> {
    let properties = &super::list(properties, 1)?[0];
    let plain =
        properties.kind == 1 && properties.handles == 0 && properties.win32.is_null() && properties.flags == [0; 8];
    let at = usize::try_from(properties.location.id).map_err(|_| code::INVALID_DEVICE)?;
    if !plain || properties.location.kind != ON_DEVICE {
        return Err(code::INVALID_VALUE);
    }
    context::device(at).map(|_| at).ok_or(code::INVALID_DEVICE)
}

driver! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let (f, t) = memory::info(context::current()?);
        put(free, f)?;
        put(total, t)?;
    }

    fn cuMemAlloc_v2(to: *mut u64, bytes: usize) {
        put(to, memory::allocate(context::current()?, bytes)?)?;
    }

    /// Wait for the device, as the driver does, but with a time limit, so that a test that would hang on a GPU fails here.
    fn cuMemFree_v2(address: u64) {
        let at = context::current()?;
        queue::drain(at, "cuMemFree")?;
        check(memory::free(address, at))?;
    }

    fn cuMemHostRegister_v2(at: *mut c_void, bytes: usize, flags: c_uint) {
        context::current()?;
        // PORTABLE and DEVICEMAP are the only flags that kvtide uses.
        if flags & !3 != 0 {
            return Err(code::INVALID_VALUE);
        }
        check(memory::register(at.expose_provenance() as u64, bytes))?;
    }

    /// Wait for the device, as the driver may.
    fn cuMemHostUnregister(at: *mut c_void) {
        let (device, address) = (context::current()?, at.addr() as u64);
        if let Some(range) = memory::find(address).filter(|range| range.base == address) {
            queue::unused(Taken::Range { base: address, bytes: range.bytes }, "cuMemHostUnregister")?;
        }
        queue::drain(device, "cuMemHostUnregister")?;
        check(memory::unregister(address))?;
    }

    fn cuMemHostGetDevicePointer_v2(to: *mut u64, at: *mut c_void, flags: c_uint) {
        context::current()?;
        let address = at.addr() as u64;
        if flags != 0 || memory::find(address).is_none_or(|range| range.kind != Kind::Registered) {
            return Err(code::INVALID_VALUE);
        }
        put(to, address)?;
    }

    /// Return memory type, ordinal, start or size of the range, whichever is requested.
    fn cuPointerGetAttribute(to: *mut c_void, which: c_uint, address: u64) {
        context::current()?;
        let range = memory::find(address).ok_or(code::INVALID_VALUE)?;
        let (device, whole) = match range.kind {
            Kind::Allocated { device, .. } => (Some(device), (range.base, range.bytes)),
            Kind::Mapped { device } => (Some(device), memory::reservation(address).unwrap_or((range.base, range.bytes))),
            Kind::Registered => (None, (range.base, range.bytes)),
        };
        match which {
            2 => put(to.cast::<u32>(), if device.is_some() { 2 } else { 1 })?,
            9 => put(to.cast::<c_int>(), device.map_or(context::current()?, |at| at) as c_int)?,
            11 => put(to.cast::<u64>(), whole.0)?,
            12 => put(to.cast::<usize>(), whole.1)?,
            _ => return Err(code::INVALID_VALUE),
        }
    }

    fn cuMemGetAllocationGranularity(to: *mut usize, properties: *const Properties, _which: c_uint) {
        of_device(properties)?;
        put(to, memory::GRANULARITY)?;
    }

    fn cuMemAddressReserve(to: *mut u64, bytes: usize, align: usize, wanted: u64, flags: c_ulonglong) {
        if flags != 0 || wanted != 0 || align > memory::GRANULARITY {
            return Err(code::INVALID_VALUE);
        }
        put(to, memory::reserve(bytes)?)?;
    }

    fn cuMemAddressFree(address: u64, bytes: usize) {
        check(memory::unreserve(address, bytes))?;
    }

    fn cuMemCreate(to: *mut u64, bytes: usize, properties: *const Properties, flags: c_ulonglong) {
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        put(to, memory::create(of_device(properties)?, bytes)?)?;
    }

    fn cuMemRelease(handle: u64) {
        check(memory::release(handle))?;
    }

    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) {
        if offset != 0 || flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        check(memory::map(address, bytes, handle))?;
    }

    fn cuMemUnmap(address: u64, bytes: usize) {
        let device = context::current()?;
        queue::unused(Taken::Range { base: address, bytes }, "cuMemUnmap")?;
        queue::drain(device, "cuMemUnmap")?;
        check(memory::unmap(address, bytes))?;
    }

    fn cuMemSetAccess(address: u64, bytes: usize, access: *const Access, count: usize) {
        let each = super::list(access, count)?;
        // Read and write, for one device.
        if each.len() != 1 || each[0].location.kind != ON_DEVICE || each[0].flags != 3 {
            return Err(code::INVALID_VALUE);
        }
        let device = usize::try_from(each[0].location.id).map_err(|_| code::INVALID_DEVICE)?;
        check(memory::allow(address, bytes, device))?;
    }
}

//! Start, devices, primary contexts.

use super::{check, driver, kernel, put, queue};
use crate::{
    code::{self, Code},
    context, settings,
};
use std::ffi::{c_char, c_int, c_uint};

/// The same name on every machine, so that it is never mistaken for a GPU.
const NAME: &[u8] = b"kvtide CPU stand-in\0";

fn device(at: c_int) -> Result<usize, Code> {
    usize::try_from(at).ok().filter(|&at| at < settings::get().devices).ok_or(code::INVALID_DEVICE)
}

/// Write a string, truncated to the buffer.
fn put_text(to: *mut c_char, room: c_int, text: &[u8]) -> Result<(), Code> {
    let room = usize::try_from(room).ok().filter(|&room| room > 0).ok_or(code::INVALID_VALUE)?;
    let bytes = text.iter().take_while(|&&b| b != 0).take(room - 1).chain([&0]);
    bytes.enumerate().try_for_each(|(at, &byte)| put(to.wrapping_add(at), byte as c_char))
}

driver! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        if settings::get().devices == 0 {
            return Err(code::NO_DEVICE);
        }
        context::start();
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        put(version, settings::get().version)?;
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        put(count, settings::get().devices as c_int)?;
    }

    fn cuDeviceGet(to: *mut c_int, ordinal: c_int) {
        put(to, device(ordinal)? as c_int)?;
    }

    fn cuDeviceGetName(name: *mut c_char, room: c_int, at: c_int) {
        device(at)?;
        put_text(name, room, NAME)?;
    }

    fn cuDeviceGetUuid(uuid: *mut [u8; 16], at: c_int) {
        put(uuid, identity(device(at)?))?;
    }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], at: c_int) {
        put(uuid, identity(device(at)?))?;
    }

    fn cuDeviceGetAttribute(value: *mut c_int, which: c_uint, at: c_int) {
        device(at)?;
        put(value, attribute(which)?)?;
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, at: c_int) {
        device(at)?;
        put(bytes, settings::get().memory)?;
    }

    fn cuDeviceGetPCIBusId(text: *mut c_char, room: c_int, at: c_int) {
        put_text(text, room, format!("0000:{:02x}:00.0", device(at)? + 1).as_bytes())?;
    }

    fn cuDevicePrimaryCtxRetain(context: *mut usize, at: c_int) {
        put(context, context::retain(device(at)?)?)?;
    }

    fn cuDevicePrimaryCtxRelease_v2(at: c_int) {
        let at = device(at)?;
        // The driver resets a primary context that nothing holds.
        context::release(at, || {
            queue::destroy_all(at);
            kernel::destroy_all(at);
        })?;
    }

    fn cuCtxGetCurrent(to: *mut usize) {
        put(to, context::current_handle())?;
    }

    fn cuCtxPushCurrent_v2(context: usize) {
        check(context::push(context))?;
    }

    fn cuCtxPopCurrent_v2(to: *mut usize) {
        let popped = context::pop()?;
        if !to.is_null() {
            put(to, popped)?;
        }
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        context::current()?;
        put(least, 0)?;
        put(greatest, -5)?;
    }
}

/// Return the identity: "kvtide stand-in" and the number.
fn identity(at: usize) -> [u8; 16] {
    let mut bytes = *b"kvtide stand-in\0";
    bytes[15] = at as u8;
    bytes
}

/// Return a requested attribute, by `CUdevice_attribute`.
fn attribute(which: c_uint) -> Result<c_int, Code> {
    Ok(match which {
        1 => 1024,         // threads of a block
        8 => 48 << 10,     // shared memory of a block
        10 => 32,          // warp
        16 => 4,           // multiprocessors
        38 => 4 << 20,     // L2
        40 => 2,           // copy engines
        41 | 91 | 99 => 1, // unified addressing, host pointers usable directly, registration
        75 => 9,           // compute capability, consistent with the shared memory
        76 => 0,
        97 => crate::module::SHARED_MAX as c_int,
        _ => return Err(code::INVALID_VALUE),
    })
}

/// Return CUDA's name of a result; null for an unknown one.
///
/// # Safety
/// The pointer is valid for writing one pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: Code, to: *mut *const c_char) -> Code {
    let name = code::name(error);
    let put = put(to, name.map_or(std::ptr::null(), std::ffi::CStr::as_ptr));
    if name.is_none() || put.is_err() { code::INVALID_VALUE } else { code::SUCCESS }
}

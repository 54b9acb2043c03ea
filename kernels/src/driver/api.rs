//! Table of the driver functions that this crate calls, filled once.
//!
//! Each signature is checked against cudarc's at compile time. Results are [`Code`]s, because cudarc's enum cannot hold an unknown
//! number. None of these calls waits for the whole device, and none creates a context.

#![allow(non_snake_case)] // fields have the driver's names

use super::Code;
use cudarc::driver::sys::{self, *};
use libloading::Library;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

macro_rules! api {
    (required { $($name:ident($($arg:ty),*);)* } optional { $($may:ident($($may_arg:ty),*);)* }) => {
        /// The driver's functions; an optional one is `None` where the driver lacks it.
        pub(crate) struct Api {
            // SAFETY: types only; each call explains why it is sound.
            /// Names results. Its argument may be an unknown number, so cudarc's signature does not fit.
            pub cuGetErrorName: unsafe extern "C" fn(Code, *mut *const c_char) -> Code,
            $(pub $name: unsafe extern "C" fn($($arg),*) -> Code,)*
            $(pub $may: Option<unsafe extern "C" fn($($may_arg),*) -> Code>,)*
        }

        // SAFETY: types only; nothing is called.
        $(const _: unsafe fn($($arg),*) -> CUresult = sys::$name;)*
        $(const _: unsafe fn($($may_arg),*) -> CUresult = sys::$may;)*

        impl Api {
            /// Look every function up, or return the names of the missing ones.
            ///
            /// # Safety
            /// The library's exports with these names must be the driver's functions.
            pub unsafe fn load(library: &Library) -> Result<Self, Vec<&'static str>> {
                let mut missing = Vec::new();
                // SAFETY: by this function's contract the symbol has the given type.
                let cuGetErrorName = unsafe { library.get(b"cuGetErrorName\0") }.map(|s| *s).ok();
                if cuGetErrorName.is_none() {
                    missing.push("cuGetErrorName");
                }
                $(
                    // SAFETY: as above.
                    let $name = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }.map(|s| *s).ok();
                    if $name.is_none() {
                        missing.push(stringify!($name));
                    }
                )*
                let Some(cuGetErrorName) = cuGetErrorName else { return Err(missing) };
                $(let Some($name) = $name else { return Err(missing) };)*
                Ok(Self {
                    cuGetErrorName,
                    $($name,)*
                    // SAFETY: as above.
                    $($may: unsafe { library.get(concat!(stringify!($may), "\0").as_bytes()) }.map(|s| *s).ok(),)*
                })
            }
        }
    };
}

api! {
    required {
        // Start and devices.
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDeviceGetUuid(*mut CUuuid, CUdevice);
        cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
        cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        cuDeviceTotalMem_v2(*mut usize, CUdevice);
        cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
        // The primary context.
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuDevicePrimaryCtxRelease_v2(CUdevice);
        cuCtxGetCurrent(*mut CUcontext);
        cuCtxPushCurrent_v2(CUcontext);
        cuCtxPopCurrent_v2(*mut CUcontext);
        cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
        cuThreadExchangeStreamCaptureMode(*mut CUstreamCaptureMode);
        // Memory.
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAlloc_v2(*mut CUdeviceptr, usize);
        cuMemFree_v2(CUdeviceptr);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
        cuPointerGetAttribute(*mut c_void, CUpointer_attribute, CUdeviceptr);
        cuMemcpyAsync(CUdeviceptr, CUdeviceptr, usize, CUstream);
        cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);
        // Streams and events.
        cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int);
        cuStreamDestroy_v2(CUstream);
        cuStreamGetCtx(CUstream, *mut CUcontext);
        cuStreamQuery(CUstream);
        cuStreamWaitEvent(CUstream, CUevent, c_uint);
        cuStreamIsCapturing(CUstream, *mut CUstreamCaptureStatus);
        cuEventCreate(*mut CUevent, c_uint);
        cuEventRecord(CUevent, CUstream);
        cuEventQuery(CUevent);
        cuEventDestroy_v2(CUevent);
        cuEventElapsedTime(*mut f32, CUevent, CUevent);
        // Kernels.
        cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void);
        cuModuleUnload(CUmodule);
        cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        cuFuncGetAttribute(*mut c_int, CUfunction_attribute, CUfunction);
        cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int);
        cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, CUfunction, c_int, usize);
        cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
        );
    }
    optional {
        // CUDA 12.8. This name keeps the signature of 12.8 in later drivers, where the newer one is cuMemcpyBatchAsync_v2.
        cuMemcpyBatchAsync(
            *mut CUdeviceptr, *mut CUdeviceptr, *mut usize, usize, *mut CUmemcpyAttributes, *mut usize, usize, *mut usize, CUstream
        );
        // Virtual memory.
        cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        cuMemAddressFree(CUdeviceptr, usize);
        cuMemCreate(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong);
        cuMemRelease(CUmemGenericAllocationHandle);
        cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
        cuMemUnmap(CUdeviceptr, usize);
        cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags);
        // CUDA 12.4: loads a function now. Earlier drivers load it on look-up.
        cuFuncLoad(CUfunction);
        // Stream memory operations.
        cuStreamWaitValue64_v2(CUstream, CUdeviceptr, cuuint64_t, c_uint);
        cuStreamWriteValue64_v2(CUstream, CUdeviceptr, cuuint64_t, c_uint);
    }
}

//! The driver's results.

use std::ffi::CStr;

/// A `CUresult`.
pub(crate) type Code = u32;

macro_rules! codes {
    ($($name:ident = $number:literal $text:literal;)*) => {
        $(#[allow(dead_code)] /* some are only ever asked for by a test's fault */ pub(crate) const $name: Code = $number;)*

        /// Return CUDA's name of a result.
        pub(crate) fn name(code: Code) -> Option<&'static CStr> {
            match code {
                $($number => CStr::from_bytes_with_nul(concat!("CUDA_", $text, "\0").as_bytes()).ok(),)*
                _ => None,
            }
        }
    };
}

codes! {
    SUCCESS = 0 "SUCCESS";
    INVALID_VALUE = 1 "ERROR_INVALID_VALUE";
    OUT_OF_MEMORY = 2 "ERROR_OUT_OF_MEMORY";
    NOT_INITIALIZED = 3 "ERROR_NOT_INITIALIZED";
    UNAVAILABLE = 46 "ERROR_DEVICE_UNAVAILABLE";
    NO_DEVICE = 100 "ERROR_NO_DEVICE";
    INVALID_DEVICE = 101 "ERROR_INVALID_DEVICE";
    INVALID_CONTEXT = 201 "ERROR_INVALID_CONTEXT";
    NO_BINARY = 209 "ERROR_NO_BINARY_FOR_GPU";
    ECC = 214 "ERROR_ECC_UNCORRECTABLE";
    INVALID_PTX = 218 "ERROR_INVALID_PTX";
    UNSUPPORTED_PTX = 222 "ERROR_UNSUPPORTED_PTX_VERSION";
    INVALID_HANDLE = 400 "ERROR_INVALID_HANDLE";
    NOT_FOUND = 500 "ERROR_NOT_FOUND";
    NOT_READY = 600 "ERROR_NOT_READY";
    ILLEGAL_ADDRESS = 700 "ERROR_ILLEGAL_ADDRESS";
    OUT_OF_RESOURCES = 701 "ERROR_LAUNCH_OUT_OF_RESOURCES";
    CONTEXT_DESTROYED = 709 "ERROR_CONTEXT_IS_DESTROYED";
    ALREADY_REGISTERED = 712 "ERROR_HOST_MEMORY_ALREADY_REGISTERED";
    NOT_REGISTERED = 713 "ERROR_HOST_MEMORY_NOT_REGISTERED";
    MISALIGNED = 716 "ERROR_MISALIGNED_ADDRESS";
    LAUNCH_FAILED = 719 "ERROR_LAUNCH_FAILED";
    NOT_SUPPORTED = 801 "ERROR_NOT_SUPPORTED";
    SYSTEM_NOT_READY = 802 "ERROR_SYSTEM_NOT_READY";
    CAPTURE_UNSUPPORTED = 900 "ERROR_STREAM_CAPTURE_UNSUPPORTED";
    CAPTURE_INVALIDATED = 901 "ERROR_STREAM_CAPTURE_INVALIDATED";
    CAPTURE_ISOLATION = 905 "ERROR_STREAM_CAPTURE_ISOLATION";
    CAPTURED_EVENT = 907 "ERROR_CAPTURED_EVENT";
    UNKNOWN = 999 "ERROR_UNKNOWN";
}

/// Return whether a context is unusable after this result: every later call returns it.
pub(crate) fn is_sticky(code: Code) -> bool {
    matches!(code, UNAVAILABLE | ECC | ILLEGAL_ADDRESS | MISALIGNED | LAUNCH_FAILED | UNKNOWN)
}

//! Which library this is.

use std::ffi::{CStr, c_char};

/// Version of the binary interface that this header describes. A library of the same number runs programs compiled with it;
/// within a number, structures only grow at their end and functions are only added.
pub const KVT_ABI_VERSION: u32 = 2;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no NUL inside"),
};

/// The library's version, such as "0.1.0". Static. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The `KVT_ABI_VERSION` that the library was built with; compare it with the header's before anything else. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_abi_version() -> u32 {
    KVT_ABI_VERSION
}

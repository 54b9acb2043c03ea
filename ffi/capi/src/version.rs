//! Version of the library and of its binary interface.

use std::ffi::{CStr, c_char};

/// Version of the binary interface that this header describes.
///
/// A library with the same number runs programs that were compiled with this header. Within one number, functions are
/// only added and structures only grow at their end.
pub const KVT_ABI_VERSION: u32 = 5;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no NUL inside"),
};

/// Return the version of the library, for example "0.1.0".
///
/// @return A static string.
/// Thread safety: any thread.
/// Example: `printf("kvtide %s\n", kvt_version());`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_version() -> *const c_char {
    VERSION.as_ptr()
}

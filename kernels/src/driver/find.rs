//! Finds the driver's library.

use crate::{Error, Result};
use libloading::Library;

/// Environment variable with the library to load instead of the system's.
const VARIABLE: &str = "KVTIDE_LIBCUDA";

/// Name of the driver's library on Linux since CUDA 4. The name without `.1` belongs to a toolkit; its stub must not be mistaken
/// for a driver.
const SONAME: &str = "libcuda.so.1";

/// Load the driver's library and return its origin. If the process has already loaded it, that one is used.
pub(super) fn load() -> Result<(Library, String)> {
    let asked = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    let name = match &asked {
        Some(path) => format!("{} (named by {VARIABLE})", path.to_string_lossy()),
        None => SONAME.to_owned(),
    };
    let file = asked.unwrap_or_else(|| SONAME.into());
    // SAFETY: loading runs the library's initialisers: those of the GPU driver, or of the library that the user named in its place.
    let loaded = unsafe { Library::new(&file) };
    let library = loaded.map_err(|why| Error::NoDriver { library: name.clone(), why: reason(&why) })?;
    let path = path_of(&library).unwrap_or(name);
    Ok((library, path))
}

/// Return the loader's message, which is in the error's source.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Return the file that a library came from.
fn path_of(library: &Library) -> Option<String> {
    // SAFETY: only the symbol's address is used.
    let symbol = unsafe { library.get::<*const libc::c_void>(b"cuInit\0") }.ok()?;
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr accepts any address and fills the struct if it returns non-zero.
    if unsafe { libc::dladdr(*symbol, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: filled by dladdr; zeroed before, which is a valid value too.
    let found = unsafe { found.assume_init() };
    if found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a string of the loader's that lives as long as the library, which is kept.
    let path = unsafe { std::ffi::CStr::from_ptr(found.dli_fname) }.to_string_lossy().into_owned();
    Some(path)
}

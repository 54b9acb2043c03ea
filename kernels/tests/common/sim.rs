//! The stand-in's test controls, by their exported names.

use libloading::{Library, Symbol};
use std::ffi::{CString, c_char};

/// The loaded stand-in.
pub struct Sim(Library);

impl Sim {
    /// Load the library that is the driver.
    pub fn new() -> Self {
        kvtide_cuda_sim::install();
        let path = std::env::var_os("KVTIDE_LIBCUDA").expect("installed");
        // SAFETY: the stand-in's library; loading it again gives the same one.
        Self(unsafe { Library::new(path) }.expect("the stand-in"))
    }

    /// Make the Nth call from now on return a code.
    pub fn fail(&self, call: &str, nth: u64, code: u32) {
        let call = CString::new(call).expect("a name");
        // SAFETY: the function has this type.
        unsafe {
            let fail: Symbol<'_, unsafe extern "C" fn(*const c_char, u64, u32)> =
                self.0.get(b"kvt_sim_fail\0").expect("exported");
            fail(call.as_ptr(), nth, code);
        }
    }

    /// Cancel all requested failures.
    pub fn mend(&self) {
        // SAFETY: the function has this type.
        unsafe {
            let mend: Symbol<'_, unsafe extern "C" fn()> = self.0.get(b"kvt_sim_mend\0").expect("exported");
            mend();
        }
    }

    /// Mark a device as lost.
    pub fn lose(&self, ordinal: u32, code: u32) {
        // SAFETY: the function has this type.
        unsafe {
            let lose: Symbol<'_, unsafe extern "C" fn(u32, u32)> = self.0.get(b"kvt_sim_lose\0").expect("exported");
            lose(ordinal, code);
        }
    }

    /// Return the context that is current for this thread, of any driver.
    pub fn current_context() -> usize {
        let mut current = 0;
        // SAFETY: the function has this type; it writes one handle.
        unsafe {
            let ask: unsafe extern "C" fn(*mut usize) -> u32 = kvtide_cuda_sim::driver_function("cuCtxGetCurrent");
            assert_eq!(ask(&mut current), 0);
        }
        current
    }
}

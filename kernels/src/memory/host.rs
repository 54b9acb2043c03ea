//! Registration of existing host memory: the shared segments of host frames.

use crate::{Device, Error, Result, driver::Code};
use std::{
    ffi::c_void,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Pinned for every context of the process.
const PORTABLE: u32 = 1;

/// Mapped into the device's address space, so that kernels read it in place.
const DEVICE_MAP: u32 = 2;

/// A mapping that is registered when a device first needs it, and unregistered when this is dropped.
pub struct HostRegion {
    device: Arc<Device>,
    pointer: *mut u8,
    bytes: usize,
    state: Mutex<Option<Registered>>,
}

#[derive(Clone, Copy)]
struct Registered {
    address: u64,
    took: Duration,
}

// SAFETY: the pointer is never dereferenced here; registration is behind a lock.
unsafe impl Send for HostRegion {}
// SAFETY: as above.
unsafe impl Sync for HostRegion {}

impl HostRegion {
    /// Store a mapping without registering it.
    ///
    /// # Errors
    /// It is empty or not aligned to pages.
    ///
    /// # Safety
    /// The mapping must stay unchanged for as long as this lives.
    pub unsafe fn new(device: &Arc<Device>, pointer: *mut u8, bytes: usize) -> Result<Self> {
        const PAGE: usize = 4096;
        if bytes == 0 || pointer.is_null() || !pointer.addr().is_multiple_of(PAGE) {
            return Err(Error::invalid(
                "host memory",
                format!("{bytes} bytes at {pointer:?} are no mapping of whole pages"),
            ));
        }
        Ok(Self { device: Arc::clone(device), pointer, bytes, state: Mutex::new(None) })
    }

    /// Return its address on the device. The first call registers it: a quarter of a second per GiB is usual.
    ///
    /// # Errors
    /// The driver refuses, or cannot pin the memory. A later call tries again.
    pub fn address(&self) -> Result<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(registered) = *state {
            return Ok(registered.address);
        }
        let began = Instant::now();
        // SAFETY: the mapping stays while this lives, by the contract of `new`; `drop` unregisters it.
        let address = unsafe { register(&self.device, self.pointer, self.bytes) }?;
        *state = Some(Registered { address, took: began.elapsed() });
        Ok(address)
    }

    /// Return how long the registration took; `None` if it is not registered yet.
    #[must_use]
    pub fn took(&self) -> Option<Duration> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).map(|registered| registered.took)
    }

    /// Return its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for HostRegion {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.is_some() && self.device.is_ours() {
            // Only a lost device fails here: the driver's pin on the pages ends with the process.
            let _ = unregister(&self.device, self.pointer);
        }
    }
}

impl std::fmt::Debug for HostRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostRegion({} bytes at {:?}, registered in {:?})", self.bytes, self.pointer, self.took())
    }
}

/// Register a mapping and return its address on the device.
///
/// # Safety
/// The mapping must stay until it is unregistered.
pub(super) unsafe fn register(device: &Arc<Device>, pointer: *mut u8, bytes: usize) -> Result<u64> {
    let on = || {
        format!("{bytes} bytes at {pointer:?} for {} (`ulimit -l` bounds what may be pinned)", device.info().label())
    };
    let _entered = device.enter()?;
    // SAFETY: the caller guarantees the mapping.
    let code = unsafe { (device.api().cuMemHostRegister_v2)(pointer.cast(), bytes, PORTABLE | DEVICE_MAP) };
    device.check_memory(code, "cuMemHostRegister", bytes as u64, on)?;
    let mut address = 0;
    // SAFETY: registered above; writes one address.
    let code = unsafe { (device.api().cuMemHostGetDevicePointer_v2)(&mut address, pointer.cast::<c_void>(), 0) };
    if code != Code::SUCCESS {
        // The first failure is the one to report.
        let _ = unregister(device, pointer);
        device.check(code, "cuMemHostGetDevicePointer", on)?;
    }
    Ok(address)
}

/// Undo a registration.
pub(super) fn unregister(device: &Device, pointer: *mut u8) -> Result<()> {
    let _entered = device.enter()?;
    // SAFETY: accepts any address; one that is not registered is an error.
    let code = unsafe { (device.api().cuMemHostUnregister)(pointer.cast()) };
    device.check(code, "cuMemHostUnregister", || format!("{pointer:?}"))
}

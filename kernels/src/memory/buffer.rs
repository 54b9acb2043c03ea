//! Plain device memory, for tables and workspaces: allocated once, freed at the end.

use crate::{Device, Error, Result};
use std::sync::Arc;

/// Device memory of a fixed size at a fixed address.
///
/// Freeing it (`cuMemFree`) waits for the whole device, so buffers are allocated at set-up and dropped at the end.
pub struct Buffer {
    device: Arc<Device>,
    address: u64,
    bytes: usize,
    leaked: bool,
}

impl Buffer {
    /// Allocate memory; its content is undefined.
    ///
    /// # Errors
    /// The device is full or lost, or `bytes` is 0.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        if bytes == 0 {
            return Err(Error::invalid("buffer", "it would be empty"));
        }
        let _entered = device.enter()?;
        let mut address = 0;
        // SAFETY: writes one address; the context is current.
        let code = unsafe { (device.api().cuMemAlloc_v2)(&mut address, bytes) };
        device.check_memory(code, "cuMemAlloc", bytes as u64, || device.info().label())?;
        Ok(Self { device: Arc::clone(device), address, bytes, leaked: false })
    }

    /// Return its start address, aligned to 256 bytes.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Return its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Leave the memory allocated as long as the device's context exists: a graph may still contain its address.
    pub fn leak(mut self) {
        self.leaked = true;
    }

    /// Return its device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.leaked || !self.device.is_ours() {
            return;
        }
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: allocated here, freed once; the driver waits for work that uses it.
            let _ = unsafe { (self.device.api().cuMemFree_v2)(self.address) };
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes at {:#x} of cuda:{})", self.bytes, self.address, self.device.info().ordinal)
    }
}

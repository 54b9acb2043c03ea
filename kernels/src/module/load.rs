//! Loading of PTX, once per device.

use super::Function;
use crate::{
    Device, Error, Result,
    driver::{Code, Version},
};
use cudarc::driver::sys::{CUjit_option, CUmodule};
use std::{
    ffi::CString,
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// Bytes of the JIT compiler's message that are kept.
const LOG_BYTES: usize = 4096;

/// Kernels as PTX text.
#[derive(Debug)]
pub struct Source {
    /// Its name, unique in this crate.
    pub name: &'static str,
    /// The text.
    pub ptx: &'static str,
}

/// Modules currently loaded on a device, so that each is loaded once.
#[derive(Default)]
pub(crate) struct Loaded {
    modules: Mutex<Vec<(&'static str, Weak<Module>)>>,
}

/// Kernels on a device.
pub struct Module {
    device: Arc<Device>,
    source: &'static Source,
    raw: CUmodule,
}

// SAFETY: any thread with the device's context current may use a module's handle.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Device {
    /// Return kernels compiled for this device by its driver (which keeps a cache on disk), or already loaded ones.
    ///
    /// # Errors
    /// The driver is too old for their PTX, or rejects it; the device is full or lost.
    pub fn module(self: &Arc<Self>, source: &'static Source) -> Result<Arc<Module>> {
        // Held during the compilation: a second thread that wants the same kernels waits for the first.
        let mut modules = self.modules.modules.lock().unwrap_or_else(PoisonError::into_inner);
        modules.retain(|(_, module)| module.strong_count() > 0);
        if let Some(module) =
            modules.iter().find(|(name, _)| *name == source.name).and_then(|(_, module)| module.upgrade())
        {
            return Ok(module);
        }
        let module = Arc::new(load(self, source)?);
        modules.push((source.name, Arc::downgrade(&module)));
        Ok(module)
    }
}

fn load(device: &Arc<Device>, source: &'static Source) -> Result<Module> {
    let text =
        CString::new(source.ptx).map_err(|_| Error::invalid("PTX", format!("`{}` has a zero byte", source.name)))?;
    let mut log = vec![0_u8; LOG_BYTES];
    let mut options = [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The second value is a number instead of a pointer: CUDA's convention.
    let mut values = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(LOG_BYTES)];
    let mut raw = std::ptr::null_mut();
    let _entered = device.enter()?;
    // SAFETY: the text ends in a zero byte; two options with their values; the log has the given length.
    let code = unsafe {
        (device.api().cuModuleLoadDataEx)(&mut raw, text.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    if code == Code::SUCCESS {
        return Ok(Module { device: Arc::clone(device), source, raw });
    }
    if code == Code::OUT_OF_MEMORY || code.is_lost() {
        device.check_memory(code, "cuModuleLoadDataEx", source.ptx.len() as u64, || {
            format!("kernels `{}`", source.name)
        })?;
    }
    let said: Vec<u8> = log.into_iter().take_while(|&byte| byte != 0).collect();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    let speaks = device.driver().version();
    let log = if speaks < Version::KERNELS {
        format!("the driver speaks {speaks}, kernels need {}. {said}", Version::KERNELS)
    } else {
        said
    };
    Err(Error::Kernels {
        module: source.name,
        device: device.info().label(),
        code: code.0,
        name: device.driver().name_of(code),
        log,
    })
}

impl Module {
    /// Return a kernel by its name.
    ///
    /// # Errors
    /// There is no kernel of this name.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function> {
        let text = CString::new(name).map_err(|_| Error::invalid("kernel", "its name has a zero byte"))?;
        let mut raw = std::ptr::null_mut();
        let _entered = self.device.enter()?;
        // SAFETY: the module is loaded; the name ends in a zero byte.
        let code = unsafe { (self.device.api().cuModuleGetFunction)(&mut raw, self.raw, text.as_ptr()) };
        self.device.check(code, "cuModuleGetFunction", || format!("`{name}` of kernels `{}`", self.source.name))?;
        // Otherwise the driver would load the function at its first launch and wait for the device then.
        if let Some(load) = self.device.api().cuFuncLoad {
            // SAFETY: the function was found above.
            let code = unsafe { load(raw) };
            self.device.check(code, "cuFuncLoad", || format!("`{name}` of kernels `{}`", self.source.name))?;
        }
        drop(_entered);
        Function::new(Arc::clone(self), raw, name)
    }

    /// Return its device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if !self.device.is_ours() {
            return;
        }
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: loaded here, unloaded once; no function of it is left, because each holds the module.
            let _ = unsafe { (self.device.api().cuModuleUnload)(self.raw) };
        }
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Module({} on cuda:{})", self.source.name, self.device.info().ordinal)
    }
}

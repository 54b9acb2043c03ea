//! The driver: found, checked and started at run time; its devices; the features that work on each.
//!
//! [`Driver::probe`] is the only entry. Everything else of this crate holds a [`Device`], which holds the driver, so no function of
//! the driver can be called before it was found. It is never unloaded, because the driver's own threads run in it.
//!
//! cudarc provides the types of the driver's ABI. Its functions are not used, because they panic if a symbol is missing.

mod api;
mod code;
mod device;
mod find;
mod info;
mod report;
mod trials;

pub(crate) use api::Api;
pub(crate) use code::Code;
pub use device::{Device, Which};
pub use info::{DeviceInfo, Uuid, Version};
pub use report::{DeviceReport, Report};
pub use trials::{Trial, Works};

use crate::{Error, Result};
use libloading::Library;
use std::{
    mem::ManuallyDrop,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// The driver of this process, once it was found and started.
static FOUND: Mutex<Option<Arc<Driver>>> = Mutex::new(None);

/// The CUDA driver of this process, started, and its devices.
pub struct Driver {
    pub(crate) api: Api,
    library: String,
    version: Version,
    devices: Vec<DeviceInfo>,
    /// Open devices, so that a second session on a device shares its kernels and trial results.
    open: Mutex<Vec<Weak<Device>>>,
    /// The process that started it; a forked child cannot use it.
    process: u32,
    /// Never closed: the driver's own threads run in it.
    _library: ManuallyDrop<Library>,
}

impl Driver {
    /// Find the driver (`KVTIDE_LIBCUDA`, else `libcuda.so.1` as the loader finds it), check that it has all required functions,
    /// start it and query its devices. No context is created. The first success is kept for the life of the process. A failure is
    /// not kept, so that the call can be repeated. Callable from any thread.
    ///
    /// # Errors
    /// There is no driver, it is too old, it lacks a function, it does not start, or it was started before this process was forked.
    pub fn probe() -> Result<Arc<Self>> {
        // Only the loader's own code can panic under the lock; the protected value stays valid.
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = &*found {
            driver.same_process("Driver::probe")?;
            return Ok(Arc::clone(driver));
        }
        let (library, name) = find::load()?;
        let driver = Arc::new(Self::start(library, name)?);
        *found = Some(Arc::clone(&driver));
        Ok(driver)
    }

    fn start(library: Library, name: String) -> Result<Self> {
        // Kept open from here on in all cases: a driver that was started and failed has threads, too.
        let library = ManuallyDrop::new(library);
        // SAFETY: the library exports the driver's API by these names: the contract of `libcuda.so.1`.
        let api =
            unsafe { Api::load(&library) }.map_err(|missing| Error::Symbols { library: name.clone(), missing })?;
        let mut driver = Self {
            api,
            library: name,
            version: Version { major: 0, minor: 0 },
            devices: Vec::new(),
            open: Mutex::default(),
            process: std::process::id(),
            _library: library,
        };
        driver.version = driver.ask_version()?;
        if driver.version < Version::NEEDED {
            return Err(Error::DriverTooOld {
                library: driver.library,
                found: driver.version,
                needed: Version::NEEDED,
            });
        }
        // SAFETY: cuInit takes no pointer; 0 is the only valid flag.
        let code = unsafe { (driver.api.cuInit)(0) };
        if code != Code::SUCCESS {
            return Err(Error::Start {
                name: driver.name_of(code),
                code: code.0,
                hint: code.hint(),
                library: driver.library,
            });
        }
        driver.devices = info::devices(&driver)?;
        Ok(driver)
    }

    /// Return the loaded library: its path if the loader reports it.
    #[must_use]
    pub fn library(&self) -> &str {
        &self.library
    }

    /// Return the CUDA version of the driver.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Return the devices visible to this process, by ordinal. May be empty.
    #[must_use]
    pub fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    /// Try all features on every device. Creates a context on each for a short time: seconds on a machine with many.
    #[must_use]
    pub fn report(self: &Arc<Self>) -> Report {
        report::of(self)
    }

    fn open_devices(&self) -> MutexGuard<'_, Vec<Weak<Device>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuse a forked child, in which the driver does not work.
    pub(crate) fn same_process(&self, what: &'static str) -> Result<()> {
        if self.is_forked() { Err(Error::Forked { what, parent: self.process }) } else { Ok(()) }
    }

    /// Return whether this process is a forked child of the one that started the driver: handles are not released then.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    fn ask_version(&self) -> Result<Version> {
        let mut number = 0;
        // SAFETY: writes one int; may be called before cuInit.
        let code = unsafe { (self.api.cuDriverGetVersion)(&mut number) };
        self.check(code, "cuDriverGetVersion", || self.library.clone())?;
        Ok(Version::from_number(number))
    }

    /// Return CUDA's name of a result.
    pub(crate) fn name_of(&self, code: Code) -> String {
        let mut name = std::ptr::null();
        // SAFETY: writes a pointer to a static string, or leaves null for an unknown code.
        let asked = unsafe { (self.api.cuGetErrorName)(code, &mut name) };
        if asked != Code::SUCCESS || name.is_null() {
            return "an error unknown to this driver".to_owned();
        }
        // SAFETY: the driver's strings are static and end in a zero byte.
        unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// Turn a result into an error with the call and its object.
    pub(crate) fn check(&self, code: Code, call: &'static str, on: impl FnOnce() -> String) -> Result<()> {
        if code == Code::SUCCESS {
            return Ok(());
        }
        Err(Error::Call { call, on: on(), code: code.0, name: self.name_of(code) })
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("library", &self.library)
            .field("version", &self.version)
            .field("devices", &self.devices)
            .finish_non_exhaustive()
    }
}

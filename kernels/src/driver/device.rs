//! One device, through its primary context, which the engine's own framework uses, too.

use super::{Code, DeviceInfo, Driver, Uuid, Works, trials};
use crate::{Error, Result, module::Loaded, stream::Words};
use cudarc::driver::sys::CUcontext;
use std::{
    marker::PhantomData,
    str::FromStr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;

/// Identifies a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// By its number in this process.
    Ordinal(u32),
    /// By its identity.
    Uuid(Uuid),
}

impl FromStr for Which {
    type Err = Error;

    /// Parse `0`, `cuda:0`, `GPU-…` or `MIG-…`.
    fn from_str(text: &str) -> Result<Self> {
        match text.strip_prefix("cuda:").unwrap_or(text).parse() {
            Ok(ordinal) => Ok(Self::Ordinal(ordinal)),
            Err(_) => text.parse().map(Self::Uuid).map_err(|_| {
                Error::invalid(
                    "device",
                    format!("`{text}` is neither a number, cuda:NUMBER, nor GPU-… or MIG-… with its identity"),
                )
            }),
        }
    }
}

impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ordinal(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Uuid(uuid) => uuid.fmt(f),
        }
    }
}

/// A device with its retained primary context. Objects on the device hold it, so it is dropped last. Usable from any thread.
pub struct Device {
    driver: Arc<Driver>,
    info: DeviceInfo,
    context: CUcontext,
    /// The result that made the device lost, or 0.
    lost: AtomicU32,
    works: OnceLock<Works>,
    /// Held during the trials, so that only one thread runs them.
    trying: Mutex<()>,
    pub(crate) words: Words,
    pub(crate) modules: Loaded,
}

// SAFETY: a context may be used by any thread that makes it current, which every call does.
unsafe impl Send for Device {}
// SAFETY: as above; several threads may call the driver's functions at the same time.
unsafe impl Sync for Device {}

impl Device {
    /// Retain the primary context of a device, which PyTorch and the CUDA runtime use, too; the driver creates it if necessary. If
    /// the device is already open in this process, return the same object.
    ///
    /// # Errors
    /// There is no such device, or its context cannot be created.
    pub fn open(driver: &Arc<Driver>, which: Which) -> Result<Arc<Self>> {
        driver.same_process("Device::open")?;
        let info = driver.devices().iter().find(|info| match which {
            Which::Ordinal(ordinal) => info.ordinal == ordinal,
            Which::Uuid(uuid) => info.uuid == uuid,
        });
        let info =
            info.cloned().ok_or_else(|| Error::NoSuchDevice { asked: which.to_string(), there: there(driver) })?;
        // Held while the context is created: a second thread that wants it waits for the first.
        let mut open = driver.open_devices();
        open.retain(|device| device.strong_count() > 0);
        if let Some(device) = open.iter().filter_map(Weak::upgrade).find(|device| device.info.ordinal == info.ordinal) {
            return Ok(device);
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one handle; the device came from the driver.
        let code = unsafe { (driver.api.cuDevicePrimaryCtxRetain)(&mut context, info.raw) };
        if code == Code::OUT_OF_MEMORY {
            // Without a context the driver cannot be queried for free memory.
            return Err(Error::OutOfMemory {
                call: "cuDevicePrimaryCtxRetain",
                on: info.label(),
                wanted: 0,
                free: 0,
                total: info.memory_bytes,
            });
        }
        driver.check(code, "cuDevicePrimaryCtxRetain", || info.label())?;
        let device = Arc::new(Self {
            driver: Arc::clone(driver),
            info,
            context,
            lost: AtomicU32::new(0),
            works: OnceLock::new(),
            trying: Mutex::new(()),
            words: Words::default(),
            modules: Loaded::default(),
        });
        open.push(Arc::downgrade(&device));
        Ok(device)
    }

    /// Return the driver.
    #[must_use]
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Return the driver's description of the device.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Return the features that work on the device, tried once with real calls. That takes milliseconds, and a short wait for the
    /// trials' copies.
    ///
    /// # Errors
    /// The device is full or lost, so that nothing could be tried. A later call tries again.
    pub fn works(self: &Arc<Self>) -> Result<&Works> {
        if let Some(works) = self.works.get() {
            return Ok(works);
        }
        let _alone = self.trying.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(works) = self.works.get() {
            return Ok(works);
        }
        let works = trials::of(self)?;
        Ok(self.works.get_or_init(|| works))
    }

    /// Return the raw primary context, for other users of it.
    #[must_use]
    pub fn context(&self) -> u64 {
        self.context as usize as u64
    }

    /// Return whether a call has found the device lost to this process.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) != 0
    }

    /// Return free and total memory of the device in bytes.
    ///
    /// # Errors
    /// The device is lost.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two sizes; the context is current.
        let code = unsafe { (self.driver.api.cuMemGetInfo_v2)(&mut free, &mut total) };
        self.check(code, "cuMemGetInfo", || self.info.label())?;
        Ok((free as u64, total as u64))
    }

    /// Make the context current for this thread until the guard is dropped. Costs one query if it is already current, as it is in
    /// the engine's own threads.
    ///
    /// Until then the thread's capture mode is relaxed. While an engine captures a graph in global mode, as PyTorch does, calls such
    /// as cuEventQuery would otherwise fail on every thread of the process, and invalidate the capture. No call here waits for work of
    /// the captured stream, so they are safe beside it.
    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        let api = &self.driver.api;
        let mut current = std::ptr::null_mut();
        // SAFETY: writes one handle.
        let code = unsafe { (api.cuCtxGetCurrent)(&mut current) };
        if code != Code::SUCCESS {
            self.driver.same_process("a call on a device")?;
            self.check(code, "cuCtxGetCurrent", || self.info.label())?;
        }
        let pushed = current != self.context;
        if pushed {
            // SAFETY: the context is held.
            let code = unsafe { (api.cuCtxPushCurrent_v2)(self.context) };
            self.check(code, "cuCtxPushCurrent", || self.info.label())?;
        }
        let mut entered = Entered { device: self, pushed, mode: RELAXED, _one_thread: PhantomData };
        let code = self.exchange_capture_mode(&mut entered.mode);
        self.check(code, "cuThreadExchangeStreamCaptureMode", || self.info.label())?;
        Ok(entered)
    }

    /// Set the thread's capture mode, and replace it in `mode` by the previous one.
    fn exchange_capture_mode(&self, mode: &mut u32) -> Code {
        // SAFETY: reads and writes one enum of the size of a u32, kept as a number, because a newer driver may have more values.
        unsafe { (self.driver.api.cuThreadExchangeStreamCaptureMode)(std::ptr::from_mut(mode).cast()) }
    }

    /// Return the driver's functions.
    pub(crate) fn api(&self) -> &super::Api {
        &self.driver.api
    }

    /// Turn a result into an error with the call and its object; record a lost device.
    pub(crate) fn check(&self, code: Code, call: &'static str, on: impl FnOnce() -> String) -> Result<()> {
        match code {
            Code::SUCCESS => Ok(()),
            code if code.is_lost() => {
                self.lost.store(code.0, Ordering::Relaxed);
                let (device, on) = (self.info.label(), on());
                Err(Error::Lost { device, call, on, code: code.0, name: self.driver.name_of(code) })
            }
            code => self.driver.check(code, call, on),
        }
    }

    /// Treat the device as lost, because the state of work on it cannot be queried any more.
    pub(crate) fn give_up(&self, why: &Error) -> Error {
        const UNKNOWN: Code = Code(999);
        self.lost.store(UNKNOWN.0, Ordering::Relaxed);
        Error::Lost {
            device: self.info.label(),
            call: "asking for the end of copies",
            on: why.to_string(),
            code: UNKNOWN.0,
            name: self.driver.name_of(UNKNOWN),
        }
    }

    /// Do the same for a call that allocates memory: the out-of-memory error contains the requested and the free bytes. The context
    /// is current.
    pub(crate) fn check_memory(
        &self,
        code: Code,
        call: &'static str,
        wanted: u64,
        on: impl FnOnce() -> String,
    ) -> Result<()> {
        if code != Code::OUT_OF_MEMORY {
            return self.check(code, call, on);
        }
        let (free, total) = self.memory().unwrap_or((0, self.info.memory_bytes));
        Err(Error::OutOfMemory { call, on: on(), wanted, free, total })
    }

    /// Return whether drops may release handles. Not in a forked child, which does not own them.
    pub(crate) fn is_ours(&self) -> bool {
        !self.driver.is_forked()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: retained by `open`, released once. The result is irrelevant: a lost context ends with the process.
            let _ = unsafe { (self.driver.api.cuDevicePrimaryCtxRelease_v2)(self.info.raw) };
        }
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("info", &self.info).field("lost", &self.is_lost()).finish_non_exhaustive()
    }
}

/// Return the existing devices, for an error's text.
fn there(driver: &Driver) -> String {
    let all: Vec<String> = driver.devices().iter().map(DeviceInfo::label).collect();
    if all.is_empty() { "none; check CUDA_VISIBLE_DEVICES".to_owned() } else { all.join(", ") }
}

/// While it lives, the device's context is current for this thread; afterwards the previous context is.
pub(crate) struct Entered<'a> {
    device: &'a Device,
    pushed: bool,
    /// The thread's capture mode before.
    mode: u32,
    /// A context is current for one thread, so the guard stays on that thread.
    _one_thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.mode != RELAXED {
            // A thread that stays relaxed only misses a warning of the driver.
            let _ = self.device.exchange_capture_mode(&mut self.mode);
        }
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: undoes the push of `enter` on the same thread. If it fails the context stays current, which is harmless.
            let _ = unsafe { (self.device.driver.api.cuCtxPopCurrent_v2)(&mut popped) };
        }
    }
}

//! Points in a stream's work.

use crate::{Device, Error, Result, driver::Code};
use cudarc::driver::sys::CUevent;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// An event without time: cheaper to record and to wait for.
const DISABLE_TIMING: u32 = 2;

/// Polls of a bounded wait before it sleeps between polls.
const SPINS: u32 = 1_000;

/// Sleep between two polls of a bounded wait.
const NAP: Duration = Duration::from_micros(20);

/// A point in a stream's work, recorded by [`crate::Stream::record`].
pub struct Event {
    device: Arc<Device>,
    raw: CUevent,
    timed: bool,
}

// SAFETY: the driver's event functions may be called from any thread.
unsafe impl Send for Event {}
// SAFETY: as above, at the same time too.
unsafe impl Sync for Event {}

impl Event {
    /// Create an event without time.
    ///
    /// # Errors
    /// The device is lost or full.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        Self::make(device, false)
    }

    /// Create an event with a timestamp, for measurements.
    ///
    /// # Errors
    /// The device is lost or full.
    pub fn timed(device: &Arc<Device>) -> Result<Self> {
        Self::make(device, true)
    }

    fn make(device: &Arc<Device>, timed: bool) -> Result<Self> {
        let _entered = device.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle; the context is current.
        let code = unsafe { (device.api().cuEventCreate)(&mut raw, if timed { 0 } else { DISABLE_TIMING }) };
        device.check_memory(code, "cuEventCreate", 0, || device.info().label())?;
        Ok(Self { device: Arc::clone(device), raw, timed })
    }

    /// Return whether everything before its last record has been done. An event that was never recorded counts as done. False if a
    /// graph capture keeps the driver from answering.
    ///
    /// # Errors
    /// Work before it failed: the device is lost.
    pub fn query(&self) -> Result<bool> {
        let _entered = self.device.enter()?;
        // SAFETY: this event owns the handle.
        match unsafe { (self.device.api().cuEventQuery)(self.raw) } {
            Code::NOT_READY => Ok(false),
            code if code.is_capture() => Ok(false),
            code => self.device.check(code, "cuEventQuery", || self.device.info().label()).map(|()| true),
        }
    }

    /// Poll until it is done or the deadline has passed; return true if it is done. Spins briefly, then sleeps: for set-up and
    /// tests, not for a hot path.
    ///
    /// # Errors
    /// Work before it failed: the device is lost.
    pub fn wait_until(&self, deadline: Instant) -> Result<bool> {
        let mut asked = 0;
        while !self.query()? {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            asked += 1;
            if asked < SPINS {
                std::hint::spin_loop();
            } else {
                // PACE: bounded by the deadline.
                std::thread::sleep(NAP);
            }
        }
        Ok(true)
    }

    /// Return the time between two events that are done.
    ///
    /// # Errors
    /// One of them has no timestamp, was not recorded or is not done, or the device is lost.
    pub fn since(&self, earlier: &Self) -> Result<Duration> {
        if !(self.timed && earlier.timed) {
            return Err(Error::invalid("event", "it has no timestamp"));
        }
        let _entered = self.device.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: both events own their handles; writes one float.
        let code = unsafe { (self.device.api().cuEventElapsedTime)(&mut milliseconds, earlier.raw, self.raw) };
        self.device.check(code, "cuEventElapsedTime", || self.device.info().label())?;
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or_default())
    }

    /// Return its device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Return the raw `CUevent`.
    #[must_use]
    pub fn raw(&self) -> u64 {
        self.raw as usize as u64
    }

    pub(super) fn handle(&self) -> CUevent {
        self.raw
    }
}

impl Drop for Event {
    /// Destroy the event. Streams that wait for it still do; the driver frees it after them.
    fn drop(&mut self) {
        if !self.device.is_ours() {
            return;
        }
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: made here, destroyed once.
            let _ = unsafe { (self.device.api().cuEventDestroy_v2)(self.raw) };
        }
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Event({:#x} of cuda:{})", self.raw(), self.device.info().ordinal)
    }
}

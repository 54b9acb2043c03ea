//! Streams of kvtide and of the engine; events; words for which a stream waits.
//!
//! Called by code that enqueues work on a device. No function here waits for a device without a limit: an end is polled
//! ([`Event::query`]), or awaited with a deadline. The meaning of the work is not known here.

mod event;
mod words;

pub use event::Event;
pub use words::WaitWord;
pub(crate) use words::Words;

use crate::{Device, Error, Result, driver::Code};
use cudarc::driver::sys::CUstream;
use std::sync::Arc;

/// Not ordered with the legacy default stream.
const NON_BLOCKING: u32 = 1;

/// The handle of the legacy default stream, which waits for all others of the context.
const LEGACY: u64 = 1;

/// The handle of each thread's own default stream.
const PER_THREAD: u64 = 2;

/// Priority of a stream's kernels. Copies by copy engines have no priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// The lowest of the device.
    Low,
    /// The default.
    Normal,
    /// The highest of the device.
    High,
}

/// A queue of work on a device, done in order.
pub struct Stream {
    device: Arc<Device>,
    raw: CUstream,
    /// Created and destroyed here; the engine's streams are only used.
    ours: bool,
}

// SAFETY: the driver's stream functions may be called from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above, at the same time too.
unsafe impl Sync for Stream {}

impl Stream {
    /// Create a new stream, not ordered with the legacy default stream.
    ///
    /// # Errors
    /// The device is lost or full.
    pub fn new(device: &Arc<Device>, priority: Priority) -> Result<Self> {
        let _entered = device.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: writes two ints; the context is current.
        let code = unsafe { (device.api().cuCtxGetStreamPriorityRange)(&mut least, &mut greatest) };
        device.check(code, "cuCtxGetStreamPriorityRange", || device.info().label())?;
        let priority = match priority {
            Priority::Low => least,
            Priority::Normal => 0,
            Priority::High => greatest,
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        let code = unsafe { (device.api().cuStreamCreateWithPriority)(&mut raw, NON_BLOCKING, priority) };
        device.check_memory(code, "cuStreamCreateWithPriority", 0, || device.info().label())?;
        Ok(Self { device: Arc::clone(device), raw, ours: true })
    }

    /// Use a stream of the engine: a raw `CUstream` (`cudaStream_t`, PyTorch's `cuda_stream`). 1 is the legacy default stream and 2
    /// the calling thread's own; 0 is refused, because its meaning depends on how its user was compiled.
    ///
    /// # Errors
    /// It is 0, or belongs to another context than the device's primary one.
    ///
    /// # Safety
    /// The handle must belong to a stream that lives as long as this.
    pub unsafe fn borrow(device: &Arc<Device>, raw: u64) -> Result<Self> {
        if raw == 0 {
            return Err(Error::invalid(
                "stream 0",
                "name the default stream that is meant: 1 is the legacy one, 2 the thread's own",
            ));
        }
        let stream = Self { device: Arc::clone(device), raw: raw as usize as CUstream, ours: false };
        let _entered = device.enter()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the caller guarantees the handle; writes one handle.
        let code = unsafe { (device.api().cuStreamGetCtx)(stream.raw, &mut context) };
        device.check(code, "cuStreamGetCtx", || stream.label())?;
        if context as usize as u64 != device.context() {
            let why = format!("it belongs to another context than the primary one of {}", device.info().label());
            return Err(Error::invalid("stream", why));
        }
        drop(_entered);
        Ok(stream)
    }

    /// Return the raw `CUstream`.
    #[must_use]
    pub fn raw(&self) -> u64 {
        self.raw as usize as u64
    }

    /// Return its device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn handle(&self) -> CUstream {
        self.raw
    }

    /// Return whether everything enqueued so far has been done. False if a graph capture keeps the driver from answering.
    ///
    /// # Errors
    /// The device is lost.
    pub fn is_idle(&self) -> Result<bool> {
        let _entered = self.device.enter()?;
        // SAFETY: this stream owns the handle, or the caller guarantees it.
        match unsafe { (self.device.api().cuStreamQuery)(self.raw) } {
            Code::NOT_READY => Ok(false),
            code if code.is_capture() => Ok(false),
            code => self.device.check(code, "cuStreamQuery", || self.label()).map(|()| true),
        }
    }

    /// Return whether its work is being captured into a graph: then no wait may be enqueued on it.
    ///
    /// # Errors
    /// The device is lost.
    pub fn is_capturing(&self) -> Result<bool> {
        let _entered = self.device.enter()?;
        let mut status = 0_u32;
        // SAFETY: writes one enum of the size of a u32, read as a number, because a newer driver may have more values.
        let code = unsafe { (self.device.api().cuStreamIsCapturing)(self.raw, (&raw mut status).cast()) };
        self.device.check(code, "cuStreamIsCapturing", || self.label())?;
        Ok(status != 0)
    }

    /// Refuse a stream that is being captured into a graph: a wait or an event there would become part of the graph, and mean
    /// something of the past at every replay.
    ///
    /// # Errors
    /// It is being captured, or the device is lost.
    pub fn outside_capture(&self) -> Result<()> {
        if self.is_capturing()? {
            return Err(Error::invalid(
                "stream",
                "it is being captured into a graph: boundaries and waits stay outside",
            ));
        }
        Ok(())
    }

    /// Record an event at this point of the stream: it is done when everything enqueued before is done.
    ///
    /// # Errors
    /// The event belongs to another device, or the device is lost.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.same_device(event)?;
        let _entered = self.device.enter()?;
        // SAFETY: both handles live; they belong to one context.
        let code = unsafe { (self.device.api().cuEventRecord)(event.handle(), self.raw) };
        self.device.check(code, "cuEventRecord", || self.label())
    }

    /// Make everything enqueued from now on wait, on the device, for the event as last recorded. An event never recorded counts as
    /// done.
    ///
    /// # Errors
    /// The event belongs to another device, or the device is lost.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        self.same_device(event)?;
        let _entered = self.device.enter()?;
        // SAFETY: both handles live.
        let code = unsafe { (self.device.api().cuStreamWaitEvent)(self.raw, event.handle(), 0) };
        self.device.check(code, "cuStreamWaitEvent", || self.label())
    }

    /// Enqueue a copy between two addresses that the device can access: its own, or those of registered host memory.
    ///
    /// # Errors
    /// The device cannot access an address, or the device is lost.
    ///
    /// # Safety
    /// Both ranges must stay valid, and nothing else may write the source or access the target, until the copy is done.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: the caller guarantees the ranges.
        let code = unsafe { (self.device.api().cuMemcpyAsync)(to, from, bytes, self.raw) };
        self.device
            .check(code, "cuMemcpyAsync", || format!("{bytes} bytes from {from:#x} to {to:#x}, {}", self.label()))
    }

    /// Enqueue filling a range of device memory with one byte.
    ///
    /// # Errors
    /// The device cannot access the address, or the device is lost.
    ///
    /// # Safety
    /// The range must stay valid, and nothing else may access it, until the fill is done.
    pub unsafe fn fill(&self, at: u64, byte: u8, bytes: usize) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: the caller guarantees the range.
        let code = unsafe { (self.device.api().cuMemsetD8Async)(at, byte, bytes, self.raw) };
        self.device.check(code, "cuMemsetD8Async", || format!("{bytes} bytes at {at:#x}, {}", self.label()))
    }

    fn same_device(&self, event: &Event) -> Result<()> {
        if self.device.context() == event.device().context() {
            return Ok(());
        }
        let (own, other) = (self.device.info().label(), event.device().info().label());
        Err(Error::invalid("event", format!("it is of {other}, the stream of {own}")))
    }

    pub(crate) fn label(&self) -> String {
        let ordinal = self.device.info().ordinal;
        match self.raw() {
            LEGACY => format!("the legacy default stream of cuda:{ordinal}"),
            PER_THREAD => format!("the thread's default stream of cuda:{ordinal}"),
            raw => format!("stream {raw:#x} of cuda:{ordinal}"),
        }
    }
}

impl Drop for Stream {
    /// Destroy the stream. Enqueued work is still done; the driver frees the stream after it.
    fn drop(&mut self) {
        if !self.ours || !self.device.is_ours() {
            return;
        }
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: made here, destroyed once.
            let _ = unsafe { (self.device.api().cuStreamDestroy_v2)(self.raw) };
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({}{})", self.label(), if self.ours { "" } else { ", borrowed" })
    }
}

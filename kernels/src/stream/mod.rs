//! Streams, ours and the engine's; events; words that a stream waits for.
//!
//! Called by whatever enqueues work on a device. Nothing here waits for a device: an end is asked for ([`Event::query`]), or waited
//! for with a deadline. What the work means is not known here.

mod event;
mod words;

pub use event::Event;
pub use words::WaitWord;
pub(crate) use words::Words;

use crate::{Device, Error, Result, driver::Code};
use cudarc::driver::sys::CUstream;
use std::sync::Arc;

/// Runs beside the legacy default stream, not in its order.
const NON_BLOCKING: u32 = 1;

/// The handle of the legacy default stream, which waits for all others of the context.
const LEGACY: u64 = 1;

/// The handle of each thread's own default stream.
const PER_THREAD: u64 = 2;

/// How urgent a stream's kernels are. Copies by copy engines know no priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// What a device has of the lowest.
    Low,
    /// What a stream has that nobody asked about.
    Normal,
    /// What a device has of the highest.
    High,
}

/// A queue of work on a device, done in order.
pub struct Stream {
    device: Arc<Device>,
    raw: CUstream,
    /// Made here, and destroyed here; the engine's are only used.
    ours: bool,
}

// SAFETY: the driver's stream functions may be called from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above, at the same time too.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream of our own, independent of the legacy default stream.
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

    /// A stream of the engine's: a raw `CUstream` (`cudaStream_t`, PyTorch's `cuda_stream`). 1 names the legacy default stream and
    /// 2 the calling thread's own; 0 is refused, because it is either, by how its user was compiled.
    ///
    /// # Errors
    /// It is 0, or belongs to another context than the device's primary one.
    ///
    /// # Safety
    /// The handle must be one of a stream that lives as long as this.
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
        // SAFETY: the caller vouches for the handle; writes one handle.
        let code = unsafe { (device.api().cuStreamGetCtx)(stream.raw, &mut context) };
        device.check(code, "cuStreamGetCtx", || stream.label())?;
        if context as usize as u64 != device.context() {
            let why = format!("it belongs to another context than the primary one of {}", device.info().label());
            return Err(Error::invalid("stream", why));
        }
        drop(_entered);
        Ok(stream)
    }

    /// The raw `CUstream`.
    #[must_use]
    pub fn raw(&self) -> u64 {
        self.raw as usize as u64
    }

    /// The device that it is a queue of.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn handle(&self) -> CUstream {
        self.raw
    }

    /// Whether everything enqueued so far has been done.
    ///
    /// # Errors
    /// The device is lost.
    pub fn is_idle(&self) -> Result<bool> {
        let _entered = self.device.enter()?;
        // SAFETY: the handle is ours, or vouched for.
        match unsafe { (self.device.api().cuStreamQuery)(self.raw) } {
            Code::NOT_READY => Ok(false),
            code => self.device.check(code, "cuStreamQuery", || self.label()).map(|()| true),
        }
    }

    /// Whether its work is being captured into a graph: then nothing that waits may be enqueued on it.
    ///
    /// # Errors
    /// The device is lost.
    pub fn is_capturing(&self) -> Result<bool> {
        let _entered = self.device.enter()?;
        let mut status = 0_u32;
        // SAFETY: writes one enum of the size of a u32, read as a number: a newer driver may know more of them.
        let code = unsafe { (self.device.api().cuStreamIsCapturing)(self.raw, (&raw mut status).cast()) };
        self.device.check(code, "cuStreamIsCapturing", || self.label())?;
        Ok(status != 0)
    }

    /// Marks this point of the stream: the event is done when everything enqueued before has been.
    ///
    /// # Errors
    /// The event is of another device, or the device is lost.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.same_device(event)?;
        let _entered = self.device.enter()?;
        // SAFETY: both handles live; they are of one context.
        let code = unsafe { (self.device.api().cuEventRecord)(event.handle(), self.raw) };
        self.device.check(code, "cuEventRecord", || self.label())
    }

    /// Whatever is enqueued from now on waits, on the device, for the event as last recorded. One never recorded is done.
    ///
    /// # Errors
    /// The event is of another device, or the device is lost.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        self.same_device(event)?;
        let _entered = self.device.enter()?;
        // SAFETY: both handles live.
        let code = unsafe { (self.device.api().cuStreamWaitEvent)(self.raw, event.handle(), 0) };
        self.device.check(code, "cuStreamWaitEvent", || self.label())
    }

    /// Enqueues a copy between two addresses that the device knows: its own, or those of registered host memory.
    ///
    /// # Errors
    /// An address is not known to the device, or the device is lost.
    ///
    /// # Safety
    /// Both ranges must stay what they are, and nobody may write what is read or touch what is written, until the copy has been done.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: the caller vouches for the ranges.
        let code = unsafe { (self.device.api().cuMemcpyAsync)(to, from, bytes, self.raw) };
        self.device
            .check(code, "cuMemcpyAsync", || format!("{bytes} bytes from {from:#x} to {to:#x}, {}", self.label()))
    }

    /// Enqueues filling a range of device memory with one byte.
    ///
    /// # Errors
    /// The address is not known to the device, or the device is lost.
    ///
    /// # Safety
    /// The range must stay what it is, and nobody else may touch it, until that has been done.
    pub unsafe fn fill(&self, at: u64, byte: u8, bytes: usize) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: the caller vouches for the range.
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
    /// Work that was enqueued is still done; the driver frees the stream after it.
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

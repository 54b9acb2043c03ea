//! Devices, their primary contexts, and the current context of each thread.

use crate::{
    code::{self, Code, SUCCESS},
    settings::{self, DEVICES_MAX},
};
use std::{
    cell::RefCell,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
};

/// A device. Its index in [`DEVICES`] is its number.
pub(crate) struct Device {
    /// Number of holders of its primary context. `holding` is locked while it changes, and while a context without holders is reset.
    held: AtomicUsize,
    holding: Mutex<()>,
    /// The result that made it lost, or 0.
    lost: AtomicU32,
    /// Bytes allocated.
    pub used: AtomicUsize,
}

static DEVICES: [Device; DEVICES_MAX] = [const {
    Device { held: AtomicUsize::new(0), holding: Mutex::new(()), lost: AtomicU32::new(0), used: AtomicUsize::new(0) }
}; DEVICES_MAX];

/// Whether cuInit was called, and the process that called it.
static STARTED: AtomicBool = AtomicBool::new(false);
static PROCESS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Contexts that this thread has pushed, as device numbers; the last one is current.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Return the handle of a context: the address of its device.
fn handle(at: usize) -> usize {
    (&raw const DEVICES[at]).addr()
}

/// Start the driver for this process.
pub(crate) fn start() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    STARTED.store(true, Ordering::Release);
}

/// Refuse calls before the start, and calls in a forked child.
pub(crate) fn started() -> Code {
    let ours = STARTED.load(Ordering::Acquire) && PROCESS.load(Ordering::Relaxed) == std::process::id();
    if ours { SUCCESS } else { code::NOT_INITIALIZED }
}

pub(crate) fn device(at: usize) -> Option<&'static Device> {
    DEVICES.get(at).filter(|_| at < settings::get().devices)
}

/// Retain a primary context.
pub(crate) fn retain(at: usize) -> Result<usize, Code> {
    let device = device(at).ok_or(code::INVALID_DEVICE)?;
    lost_code(device)?;
    let _holding = device.holding.lock().unwrap_or_else(PoisonError::into_inner);
    device.held.fetch_add(1, Ordering::Relaxed);
    Ok(handle(at))
}

/// Release a primary context. If nothing holds it any more, `reset` it before another call can retain it.
pub(crate) fn release(at: usize, reset: impl FnOnce()) -> Result<(), Code> {
    let device = device(at).ok_or(code::INVALID_DEVICE)?;
    let _holding = device.holding.lock().unwrap_or_else(PoisonError::into_inner);
    let held = device.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| held.checked_sub(1));
    if held.map_err(|_| code::INVALID_CONTEXT)? == 1 {
        reset();
    }
    Ok(())
}

fn lost_code(device: &Device) -> Result<(), Code> {
    match device.lost.load(Ordering::Acquire) {
        0 => Ok(()),
        lost => Err(lost),
    }
}

/// Mark a device as lost with its first fault.
pub(crate) fn lose(at: usize, code: Code) {
    if let Some(device) = DEVICES.get(at) {
        let _ = device.lost.compare_exchange(0, code, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Return the result that made a device lost, or 0.
pub(crate) fn lost(at: usize) -> Code {
    DEVICES.get(at).map_or(0, |device| device.lost.load(Ordering::Acquire))
}

/// Report a fault of the program that a GPU would not survive, and lose the device.
pub(crate) fn fault(at: usize, why: &str) -> Code {
    eprintln!("kvtide stand-in: {why}");
    lose(at, code::ILLEGAL_ADDRESS);
    code::ILLEGAL_ADDRESS
}

/// Return the result for a call that needs a context: this thread has none, or nothing holds it any more.
pub(crate) fn attached() -> Code {
    match CURRENT.with_borrow(|stack| stack.last().copied()) {
        None => code::INVALID_CONTEXT,
        Some(at) if DEVICES[at].held.load(Ordering::Relaxed) == 0 => code::CONTEXT_DESTROYED,
        Some(_) => SUCCESS,
    }
}

/// Return the device of this thread's current context, or the error for a call that needs one.
pub(crate) fn current() -> Result<usize, Code> {
    let at = CURRENT.with_borrow(|stack| stack.last().copied()).ok_or(code::INVALID_CONTEXT)?;
    lost_code(&DEVICES[at])?;
    Ok(at)
}

/// Return the current context's handle, or 0.
pub(crate) fn current_handle() -> usize {
    CURRENT.with_borrow(|stack| stack.last().map_or(0, |&at| handle(at)))
}

/// Return the handle of a device's context.
pub(crate) fn handle_of(at: usize) -> usize {
    handle(at)
}

pub(crate) fn push(context: usize) -> Code {
    let found = (0..settings::get().devices).find(|&at| handle(at) == context);
    match found {
        Some(at) if DEVICES[at].held.load(Ordering::Relaxed) > 0 => {
            CURRENT.with_borrow_mut(|stack| stack.push(at));
            SUCCESS
        }
        _ => code::INVALID_CONTEXT,
    }
}

pub(crate) fn pop() -> Result<usize, Code> {
    CURRENT.with_borrow_mut(Vec::pop).map(handle).ok_or(code::INVALID_CONTEXT)
}

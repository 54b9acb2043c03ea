//! Failures on request: of a call, by its name and number, or of a device.

use crate::{
    code::{Code, SUCCESS},
    context,
};
use std::{
    cell::Cell,
    collections::HashMap,
    ffi::{CStr, c_char},
    sync::{
        LazyLock, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// A call that is to fail.
struct Fault {
    call: String,
    /// Calls until it fails; `None` for every one.
    left: Option<u64>,
    code: Code,
}

static FAULTS: LazyLock<Mutex<Vec<Fault>>> = LazyLock::new(|| Mutex::new(from_environment()));

/// Calls made, by name, for tests that check whether a call was made.
static CALLS: LazyLock<Mutex<HashMap<&'static str, u64>>> = LazyLock::new(Mutex::default);

/// True if calls are counted. Each count takes a lock.
static COUNTS: AtomicBool = AtomicBool::new(false);

fn from_environment() -> Vec<Fault> {
    let text = std::env::var("KVTIDE_SIM_FAULT").unwrap_or_default();
    let parsed = text.split(',').filter(|part| !part.is_empty()).map(|part| {
        let (call, rest) = part.split_once(':')?;
        let (nth, code) = rest.split_once('=')?;
        let left = if nth == "*" { None } else { Some(nth.parse().ok()?) };
        Some(Fault { call: call.to_owned(), left, code: code.parse().ok()? })
    });
    parsed.collect::<Option<_>>().unwrap_or_else(|| {
        eprintln!("kvtide stand-in: KVTIDE_SIM_FAULT={text} is not CALL:N=CODE,...");
        std::process::abort()
    })
}

/// Return the code with which a call is to fail, if any.
pub(crate) fn of(call: &'static str) -> Code {
    if COUNTS.load(Ordering::Relaxed) {
        *CALLS.lock().unwrap_or_else(PoisonError::into_inner).entry(call).or_default() += 1;
    }
    let mut faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(at) = faults.iter().position(|fault| fault.call == call) else { return SUCCESS };
    let code = faults[at].code;
    match &mut faults[at].left {
        None => code,
        Some(left) if *left > 1 => {
            *left -= 1;
            SUCCESS
        }
        Some(_) => {
            faults.remove(at);
            code
        }
    }
}

/// Make the Nth call of a function from now on fail (0: every one).
///
/// # Safety
/// The name is a string that ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_sim_fail(call: *const c_char, nth: u64, code: u32) {
    // SAFETY: guaranteed by the caller.
    let call = unsafe { CStr::from_ptr(call) }.to_string_lossy().into_owned();
    let left = if nth == 0 { None } else { Some(nth) };
    FAULTS.lock().unwrap_or_else(PoisonError::into_inner).push(Fault { call, left, code });
}

/// The call that is to wait for the device.
static BLOCK: Mutex<Option<String>> = Mutex::new(None);

/// Make the next call of a function wait until its device is idle, as the driver may do in any call.
///
/// # Safety
/// The name is a string that ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_sim_block(call: *const c_char) {
    // SAFETY: guaranteed by the caller.
    let call = unsafe { CStr::from_ptr(call) }.to_string_lossy().into_owned();
    *BLOCK.lock().unwrap_or_else(PoisonError::into_inner) = Some(call);
}

/// Return whether this call is to wait for the device.
pub(crate) fn blocks(call: &str) -> bool {
    BLOCK.lock().unwrap_or_else(PoisonError::into_inner).take_if(|blocked| blocked == call).is_some()
}

thread_local! {
    static SNAPSHOTS: Cell<bool> = const { Cell::new(false) };
}

/// Exempt what this thread's copies read from the check of order, or end that. For tests that copy all memory and then look only at
/// bytes that nothing writes.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_sim_snapshots(on: bool) {
    SNAPSHOTS.set(on);
}

/// Return whether a copy that is enqueued now is such a snapshot.
pub(crate) fn is_snapshot() -> bool {
    SNAPSHOTS.get()
}

/// Cancel all requested failures; lost devices stay lost.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_sim_mend() {
    FAULTS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Mark a device as lost: every later call on it returns the code.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_sim_lose(ordinal: u32, code: u32) {
    context::lose(ordinal as usize, code);
}

/// Return how often a function was called since counts were first requested.
///
/// # Safety
/// The name is a string that ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_sim_calls(call: *const c_char) -> u64 {
    COUNTS.store(true, Ordering::Relaxed);
    // SAFETY: guaranteed by the caller.
    let call = unsafe { CStr::from_ptr(call) }.to_string_lossy();
    CALLS.lock().unwrap_or_else(PoisonError::into_inner).get(&*call).copied().unwrap_or(0)
}

//! The way into every function of the C ABI: no panic leaves it, a failure is remembered, NULL is refused.

use super::error::{Fault, remember};
use super::status::kvt_status;
use kvtide_wire::status::Status;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of `call`. A panic becomes `KVT_EINTERNAL`: the handle that the body was inside is poisoned by its table, so
/// that nothing half-done is seen again.
pub(crate) fn entry(call: &'static str, body: impl FnOnce() -> Result<(), Fault>) -> kvt_status {
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return kvt_status::KVT_OK,
        Ok(Err(fault)) => fault,
        Err(panic) => {
            let why = panic
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "a panic without a message".to_owned());
            Fault::new(Status::Internal, why)
        }
    };
    let status = kvt_status::of(fault.status());
    // Dropping the previous failure or a panic inside must not leave either.
    let _ = catch_unwind(AssertUnwindSafe(|| remember(call, fault)));
    status
}

/// The same for functions that cannot fail and return a value: `fallback` in case of a panic.
pub(crate) fn guard_or<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
}

/// Writes a result through an out pointer.
///
/// # Safety
/// `out` is NULL or valid for a write of a `T`.
pub(crate) unsafe fn write<T>(name: &'static str, out: *mut T, value: T) -> Result<(), Fault> {
    check_out(name, out)?;
    // SAFETY: not NULL, and valid for a write by this function's own contract.
    unsafe { out.write(value) };
    Ok(())
}

/// Refuses a NULL or misaligned out pointer before anything is done that would be lost with it.
pub(crate) fn check_out<T>(name: &'static str, out: *mut T) -> Result<(), Fault> {
    check_pointer(name, out)
}

/// Refuses a NULL or misaligned pointer.
pub(crate) fn check_pointer<T>(name: &'static str, pointer: *const T) -> Result<(), Fault> {
    if pointer.is_null() {
        return Err(Fault::new(Status::Invalid, format!("argument `{name}` is NULL")));
    }
    if !pointer.is_aligned() {
        return Err(Fault::new(
            Status::Invalid,
            format!("argument `{name}` ({pointer:p}) is not aligned to {} bytes", align_of::<T>()),
        ));
    }
    Ok(())
}

/// An array argument: `count` elements at `pointer`, which may be NULL if there are none.
///
/// # Safety
/// `pointer` is NULL or valid for reads of `count` elements that nobody writes during `'a`.
pub(crate) unsafe fn array<'a, T>(name: &'static str, pointer: *const T, count: usize) -> Result<&'a [T], Fault> {
    if count == 0 {
        return Ok(&[]);
    }
    check_pointer(name, pointer)?;
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Fault::new(Status::Range, format!("argument `{name}` claims {count} elements")));
    }
    // SAFETY: not NULL, aligned, not longer than an object may be; valid and unwritten by this function's own contract.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// A C string argument as UTF-8.
///
/// # Safety
/// `pointer` is NULL or a NUL-terminated string that nobody writes during `'a`.
pub(crate) unsafe fn string<'a>(name: &'static str, pointer: *const std::ffi::c_char) -> Result<&'a str, Fault> {
    check_pointer(name, pointer)?;
    // SAFETY: not NULL; NUL-terminated and unwritten by this function's own contract.
    let text = unsafe { std::ffi::CStr::from_ptr(pointer) };
    text.to_str().map_err(|error| Fault::new(Status::Invalid, format!("argument `{name}` is not UTF-8: {error}")))
}

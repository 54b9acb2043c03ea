//! Entry into every function of the C ABI: catch panics, record failures, reject invalid pointers.

use super::error::{Fault, remember};
use super::status::kvt_status;
use kvtide_wire::status::Status;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

/// Run the body of `call` and return its status.
///
/// A panic becomes `KVT_EINTERNAL`. The table poisons the handle that the body had entered, so its inconsistent value
/// is not used again.
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
    // A panic while the previous failure is dropped must not cross the boundary either.
    let _ = catch_unwind(AssertUnwindSafe(|| remember(call, fault)));
    status
}

/// Run the body of a function that cannot fail; return `fallback` if it panics.
pub(crate) fn guard_or<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
}

/// Write a result through an out pointer.
///
/// # Safety
/// `out` is NULL or valid for a write of a `T`.
pub(crate) unsafe fn write<T>(name: &'static str, out: *mut T, value: T) -> Result<(), Fault> {
    check_out(name, out)?;
    // SAFETY: not NULL, and valid for a write by this function's own contract.
    unsafe { out.write(value) };
    Ok(())
}

/// Place for a result that the caller may not want: NULL, or a pointer that was checked before any work is done for the result.
pub(crate) struct Optional<T>(Option<NonNull<T>>);

impl<T> Optional<T> {
    /// Reject a misaligned pointer.
    ///
    /// # Safety
    /// `out` is NULL or valid for writes of a `T` while this value lives.
    pub(crate) unsafe fn new(name: &'static str, out: *mut T) -> Result<Optional<T>, Fault> {
        let out = NonNull::new(out);
        if let Some(out) = out {
            check_out(name, out.as_ptr())?;
        }
        Ok(Optional(out))
    }

    /// Write the result, if it is wanted.
    pub(crate) fn set(&self, value: T) {
        if let Some(out) = self.0 {
            // SAFETY: aligned, and valid for a write by the contract of `new`.
            unsafe { out.write(value) };
        }
    }
}

/// Reject a NULL or misaligned out pointer, before any work is done for its result.
pub(crate) fn check_out<T>(name: &'static str, out: *mut T) -> Result<(), Fault> {
    check_pointer(name, out)
}

/// Reject a NULL or misaligned pointer.
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

/// Return an array argument: `count` elements at `pointer`, which may be NULL if `count` is 0.
///
/// # Safety
/// `pointer` is NULL or valid for reads of `count` elements that are not written during `'a`.
pub(crate) unsafe fn array<'a, T>(name: &'static str, pointer: *const T, count: usize) -> Result<&'a [T], Fault> {
    if count == 0 {
        return Ok(&[]);
    }
    check_pointer(name, pointer)?;
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Fault::new(Status::Range, format!("argument `{name}`: {count} elements do not fit into memory")));
    }
    // SAFETY: not NULL, aligned, not longer than an object may be; valid and unwritten by this function's own contract.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Return a C string argument as UTF-8.
///
/// # Safety
/// `pointer` is NULL or a NUL-terminated string that is not written during `'a`.
pub(crate) unsafe fn string<'a>(name: &'static str, pointer: *const std::ffi::c_char) -> Result<&'a str, Fault> {
    check_pointer(name, pointer)?;
    // SAFETY: not NULL; NUL-terminated and unwritten by this function's own contract.
    let text = unsafe { std::ffi::CStr::from_ptr(pointer) };
    text.to_str().map_err(|error| Fault::new(Status::Invalid, format!("argument `{name}` is not UTF-8: {error}")))
}

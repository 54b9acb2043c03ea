//! The driver's functions, under their names. `kvtide-kernels` calls these, and tests those of graphs. Functions that wait for a whole device, create
//! a context or copy synchronously are missing on purpose, so that a call of one fails at once.
//!
//! Each function first checks for a requested failure, then whether this process has started the driver, then its handles.

#![allow(non_snake_case)] // as the driver names them

mod device;
mod graph;
mod kernel;
mod memory;
mod queue;

use crate::{
    capture,
    code::{self, Code, SUCCESS},
    context, fault,
};
use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

/// Defines functions of the driver: bodies end early by `?` with a [`Code`].
macro_rules! driver {
    ($($(#[$note:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$note])*
        /// # Safety
        /// As in the driver's reference: pointers are null where that is allowed, or valid for the bytes read or written there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $crate::code::Code {
            $crate::api::enter(stringify!($name), || -> Result<(), $crate::code::Code> {
                $body
                #[allow(unreachable_code)] // a body may always fail
                Ok(())
            })
        }
    )*};
}
use driver;

/// Do the checks that every call begins with.
fn enter(name: &'static str, body: impl FnOnce() -> Result<(), Code>) -> Code {
    let code = fault::of(name);
    if code != SUCCESS {
        if code::is_sticky(code)
            && let Ok(at) = context::current()
        {
            context::lose(at, code);
        }
        return code;
    }
    let early = matches!(name, "cuInit" | "cuDriverGetVersion");
    match context::started() {
        SUCCESS => {}
        _ if early => {}
        code => return code,
    }
    let code = capture::check(name);
    if code != SUCCESS {
        return code;
    }
    if fault::blocks(name)
        && let Ok(at) = context::current()
        && let Err(code) = queue::drain(at, name)
    {
        return code;
    }
    body().err().unwrap_or(SUCCESS)
}

/// Convert a result code.
fn check(code: Code) -> Result<(), Code> {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

/// Write the result of a call.
fn put<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: not null, so it is valid for this write by the contract of every function here.
    unsafe { to.write(value) };
    Ok(())
}

/// Return a list argument of a call.
fn list<'a, T>(from: *const T, count: usize) -> Result<&'a [T], Code> {
    if from.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: not null, so it has `count` items by the contract of every function here; used within the call only.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

/// Objects by handle. The handle is the object's address.
struct Handles<T>(RwLock<Option<HashMap<usize, Arc<T>>>>);

impl<T> Handles<T> {
    const fn new() -> Self {
        Self(RwLock::new(None))
    }

    fn add(&self, thing: Arc<T>) -> usize {
        let handle = Arc::as_ptr(&thing).addr();
        self.0.write().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(handle, thing);
        handle
    }

    fn get(&self, handle: usize) -> Result<Arc<T>, Code> {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().and_then(|held| held.get(&handle)).cloned().ok_or(code::INVALID_HANDLE)
    }

    fn remove(&self, handle: usize) -> Result<Arc<T>, Code> {
        let mut held = self.0.write().unwrap_or_else(PoisonError::into_inner);
        held.as_mut().and_then(|held| held.remove(&handle)).ok_or(code::INVALID_HANDLE)
    }

    fn all(&self) -> Vec<Arc<T>> {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        held.iter().flat_map(|held| held.values()).cloned().collect()
    }
}

//! The driver's functions, under their names. `kvtide-kernels` calls exactly these; what waits for a whole device, makes a context or
//! copies in step is missing on purpose, so that whoever calls it fails at once.
//!
//! Each looks whether it is to fail on demand, then whether the driver was started by this process, then at its handles.

#![allow(non_snake_case)] // as the driver names them

mod device;
mod kernel;
mod memory;
mod queue;

use crate::{
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
        /// As the driver's reference says: pointers are null where that is allowed, or good for what is written or read there.
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

/// What every call does first.
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
    body().err().unwrap_or(SUCCESS)
}

/// A result as one.
fn check(code: Code) -> Result<(), Code> {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

/// Writes what a call returns.
fn put<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: not null, so by the contract of every function here it is good for this.
    unsafe { to.write(value) };
    Ok(())
}

/// A list that a call takes.
fn list<'a, T>(from: *const T, count: usize) -> Result<&'a [T], Code> {
    if from.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: not null, so by the contract of every function here it has so many; used within the call only.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

/// Things by handle: the address of what is held.
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

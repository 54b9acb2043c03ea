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
    cell::Cell,
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, Weak},
};

/// Calls that need no context. The driver's virtual memory needs none either, but kvtide always has one.
const FREE: [&str; 15] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceGetUuid_v2",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetPCIBusId",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
];

thread_local! {
    /// The call that this thread is in, for messages.
    static CALL: Cell<&'static str> = const { Cell::new("") };
}

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
    CALL.set(name);
    let code = if FREE.contains(&name) { SUCCESS } else { context::attached() };
    if code != SUCCESS {
        eprintln!("kvtide stand-in: {name} on a thread without a current context");
        return code;
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

/// An object of a context.
trait Owned {
    /// For messages.
    const KIND: &'static str;

    fn device(&self) -> usize;
}

/// Objects by handle. The handle is the object's address.
struct Handles<T>(RwLock<Option<HashMap<usize, Held<T>>>>);

enum Held<T> {
    Live(Arc<T>),
    /// Keeps the address from being given to another object, so that a later use of the handle is found.
    Destroyed {
        device: usize,
        _address: Weak<T>,
    },
}

impl<T: Owned> Handles<T> {
    const fn new() -> Self {
        Self(RwLock::new(None))
    }

    fn add(&self, thing: Arc<T>) -> usize {
        let handle = Arc::as_ptr(&thing).addr();
        let mut held = self.0.write().unwrap_or_else(PoisonError::into_inner);
        held.get_or_insert_default().insert(handle, Held::Live(thing));
        handle
    }

    /// Return an object of any context.
    fn of_any(&self, handle: usize) -> Result<Arc<T>, Code> {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match held.as_ref().and_then(|held| held.get(&handle)) {
            Some(Held::Live(thing)) => Ok(Arc::clone(thing)),
            Some(Held::Destroyed { device, .. }) => {
                let why = format!("{}: the {} {handle:#x} was destroyed", CALL.get(), T::KIND);
                Err(context::fault(*device, &why))
            }
            None => Err(code::INVALID_HANDLE),
        }
    }

    /// Return an object of the current context.
    fn get(&self, handle: usize) -> Result<Arc<T>, Code> {
        let (thing, at) = (self.of_any(handle)?, context::current()?);
        if thing.device() != at {
            let (call, of) = (CALL.get(), thing.device());
            eprintln!("kvtide stand-in: {call}: the {} {handle:#x} is of cuda:{of}, the context of cuda:{at}", T::KIND);
            return Err(code::INVALID_HANDLE);
        }
        Ok(thing)
    }

    /// Destroy an object of the current context.
    fn remove(&self, handle: usize) -> Result<Arc<T>, Code> {
        let thing = self.get(handle)?;
        let destroyed = Held::Destroyed { device: thing.device(), _address: Arc::downgrade(&thing) };
        self.0.write().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(handle, destroyed);
        Ok(thing)
    }

    /// Destroy some objects.
    fn remove_if(&self, is_one: impl Fn(&T) -> bool) {
        let mut held = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for held in held.iter_mut().flat_map(HashMap::values_mut) {
            if let Held::Live(thing) = held
                && is_one(thing)
            {
                *held = Held::Destroyed { device: thing.device(), _address: Arc::downgrade(thing) };
            }
        }
    }

    fn all(&self) -> Vec<Arc<T>> {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let live = |held: &Held<T>| if let Held::Live(thing) = held { Some(Arc::clone(thing)) } else { None };
        held.iter().flat_map(HashMap::values).filter_map(live).collect()
    }
}

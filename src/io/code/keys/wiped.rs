//! Memory that is overwritten when it is dropped, for keys whose type does not do that itself.

use std::mem::{MaybeUninit, needs_drop};
use std::sync::atomic::{Ordering, compiler_fence};

/// A value at a fixed address, overwritten with zeros at the drop. What was copied before it came here is not.
pub(super) struct Wiped<T>(Box<MaybeUninit<T>>);

impl<T> Wiped<T> {
    /// Takes a value that owns nothing.
    pub fn new(value: T) -> Wiped<T> {
        const { assert!(!needs_drop::<T>(), "its drop would not run") };
        Wiped(Box::new(MaybeUninit::new(value)))
    }

    /// The value.
    pub fn get(&self) -> &T {
        // SAFETY: it was initialised at its making, and is overwritten at the drop alone.
        unsafe { self.0.assume_init_ref() }
    }
}

impl<T> Drop for Wiped<T> {
    fn drop(&mut self) {
        let at = self.0.as_mut_ptr().cast::<u8>();
        for byte in 0..size_of::<T>() {
            // SAFETY: the box holds that many bytes, and nobody reads them as `T` again. Volatile: nobody reads them at all.
            unsafe { at.add(byte).write_volatile(0) };
        }
        compiler_fence(Ordering::SeqCst);
    }
}

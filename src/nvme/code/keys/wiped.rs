//! Memory that is overwritten on drop, for key types that do not do that themselves.

use std::mem::{MaybeUninit, needs_drop};
use std::sync::atomic::{Ordering, compiler_fence};

/// A value at a fixed address, overwritten with zeros on drop. Copies made before it was moved here are not overwritten.
pub(super) struct Wiped<T>(Box<MaybeUninit<T>>);

impl<T> Wiped<T> {
    /// Store a value. Its type must need no drop.
    pub fn new(value: T) -> Wiped<T> {
        const { assert!(!needs_drop::<T>(), "its drop would not run") };
        Wiped(Box::new(MaybeUninit::new(value)))
    }

    /// Return the value.
    pub fn get(&self) -> &T {
        // SAFETY: it was initialised in `new`, and is overwritten only on drop.
        unsafe { self.0.assume_init_ref() }
    }
}

impl<T> Drop for Wiped<T> {
    fn drop(&mut self) {
        let at = self.0.as_mut_ptr().cast::<u8>();
        for byte in 0..size_of::<T>() {
            // SAFETY: the box has this many bytes, and they are not read as `T` again. Volatile, since the compiler would drop
            // writes that are never read.
            unsafe { at.add(byte).write_volatile(0) };
        }
        compiler_fence(Ordering::SeqCst);
    }
}

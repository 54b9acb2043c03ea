//! Calls inside a handle: guards that give access to the value and count as its users.

use super::{Exclusive, POISONED, Shared, Slot, Table};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

/// A call inside a shared handle.
pub(crate) struct SharedUse<T: 'static> {
    pub(super) table: &'static Table<T, Shared>,
    pub(super) index: u32,
    pub(super) slot: &'static Slot<T>,
}

impl<T> Deref for SharedUse<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: rules 2 and 5: the value exists while this user is counted; in a shared table it is never mutated.
        unsafe { (*self.slot.value.get()).as_ref() }.expect("a handle with users has its value")
    }
}

impl<T> Drop for SharedUse<T> {
    fn drop(&mut self) {
        self.table.leave(self.index, self.slot);
    }
}

/// A call inside an exclusive handle.
pub(crate) struct ExclusiveUse<T: 'static> {
    pub(super) table: &'static Table<T, Exclusive>,
    pub(super) index: u32,
    pub(super) slot: &'static Slot<T>,
}

impl<T> Deref for ExclusiveUse<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: rule 3: an exclusive user is alone until it leaves.
        unsafe { (*self.slot.value.get()).as_ref() }.expect("a handle with users has its value")
    }
}

impl<T> DerefMut for ExclusiveUse<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: rule 3: an exclusive user is alone until it leaves.
        unsafe { (*self.slot.value.get()).as_mut() }.expect("a handle with users has its value")
    }
}

impl<T> Drop for ExclusiveUse<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.slot.state.fetch_or(POISONED, Ordering::Relaxed);
        }
        self.table.leave(self.index, self.slot);
    }
}

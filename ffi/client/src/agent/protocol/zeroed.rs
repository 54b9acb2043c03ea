//! Large arrays of zeroed words that use memory only where they are touched.

use kvtide_wire::sync::{AtomicU32, AtomicU64};

/// Allocate `count` zeroed words; `None` if the system has no memory for them.
#[cfg(not(loom))]
pub(in crate::agent) fn words<T: Zeroed>(count: usize) -> Option<Box<[T]>> {
    use std::alloc::{Layout, alloc_zeroed};
    if count == 0 {
        return Some(Box::default());
    }
    let layout = Layout::array::<T>(count).ok()?;
    // SAFETY: the layout has a size above zero (count > 0 and T is not zero-sized); zeroed memory is a valid T (`Zeroed`);
    // length and layout are those that the box will free.
    unsafe {
        let start = alloc_zeroed(layout).cast::<T>();
        (!start.is_null()).then(|| Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, count)))
    }
}

/// Allocate `count` zeroed words one by one: loom's atomics are not plain memory.
#[cfg(loom)]
pub(in crate::agent) fn words<T: Zeroed>(count: usize) -> Option<Box<[T]>> {
    Some((0..count).map(|_| T::zero()).collect())
}

/// Types for which zeroed memory is a valid value and which are not zero-sized.
///
/// # Safety
/// The implementor guarantees exactly that.
pub(in crate::agent) unsafe trait Zeroed {
    /// Return the zero value.
    #[cfg_attr(not(loom), allow(dead_code))] // loom builds the words one by one
    fn zero() -> Self;
}

// SAFETY: an integer.
unsafe impl Zeroed for u32 {
    fn zero() -> Self {
        0
    }
}
// SAFETY: an integer.
unsafe impl Zeroed for u16 {
    fn zero() -> Self {
        0
    }
}
// SAFETY: same representation as u32; under loom only `zero` is used.
unsafe impl Zeroed for AtomicU32 {
    fn zero() -> Self {
        AtomicU32::new(0)
    }
}
// SAFETY: same representation as u64; under loom only `zero` is used.
unsafe impl Zeroed for AtomicU64 {
    fn zero() -> Self {
        AtomicU64::new(0)
    }
}

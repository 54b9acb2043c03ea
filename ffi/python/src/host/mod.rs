//! CPU implementations of the operators other than attention, by address: copies between layouts, and block tables.
//! The computation is the kernels' reference; this module converts tensors to its arguments.
//!
//! The caller (`kvtide.torch.ops`) has checked shapes and types; indices are checked here. Pages of tier 0 are copied before they
//! are read, and written row by row: the agent writes other frames meanwhile, so no slice may cover them.

mod rows;
mod tables;

pub use rows::copy_blocks;
pub use tables::block_tables;

use std::ptr::with_exposed_provenance as at;

/// Return a dense torch tensor as a slice.
///
/// # Safety
/// There are `count` elements of this type at `address`, and they are not written during the call.
unsafe fn tensor<'a, T>(address: usize, count: usize) -> &'a [T] {
    // SAFETY: promised by the caller; torch aligns its tensors to more than any element.
    if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(at(address), count) } }
}

/// Return a dense torch tensor as a mutable slice.
///
/// # Safety
/// As for [`tensor`], and no other code reads them.
unsafe fn tensor_mut<'a, T>(address: usize, count: usize) -> &'a mut [T] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: as in `tensor`.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), count) }
}

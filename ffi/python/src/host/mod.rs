//! The CPU halves of the operators over pages other than attention's, by address: blocks between layouts, codecs, digests, block
//! tables. What a number means is the kernels' reference; here tensors become what it takes.
//!
//! Whoever calls has checked shapes and types (`kvtide.torch.ops`); indices are checked here. Pages of tier 0 are copied before they
//! are looked at, and written row by row: the agent writes other frames meanwhile, so that no slice may stand over them.

mod codecs;
mod digests;
mod rows;
mod tables;

pub use codecs::{dequantize, image_bytes, quantize};
pub use digests::{digest_build, digest_scores, digest_select};
pub use rows::copy_blocks;
pub use tables::block_tables;

use kvtide_client::cuda::reference::Element;
use std::ptr::with_exposed_provenance as at;

const fn element(bf16: bool) -> Element {
    if bf16 { Element::Bf16 } else { Element::F16 }
}

/// A dense tensor of torch's.
///
/// # Safety
/// It has `count` elements of this type at `address`, and nobody writes them during the call.
unsafe fn tensor<'a, T>(address: usize, count: usize) -> &'a [T] {
    // SAFETY: the caller's promise; torch aligns its tensors to more than any element.
    if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(at(address), count) } }
}

/// The same, to be written.
///
/// # Safety
/// As for [`tensor`], and nobody else reads them.
pub unsafe fn tensor_mut<'a, T>(address: usize, count: usize) -> &'a mut [T] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: as in `tensor`.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), count) }
}

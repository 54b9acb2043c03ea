//! GPU side of the handles of `batch`, `attention` and `kernels`: converts the C structures to the kernels' parameters.
//!
//! `without` replaces it if the library is built without CUDA: the header is the same, but no such handle can be opened.

#[cfg(feature = "cuda")]
mod with;
#[cfg(not(feature = "cuda"))]
mod without;

#[cfg(feature = "cuda")]
pub(crate) use with::*;
#[cfg(not(feature = "cuda"))]
pub(crate) use without::*;

//! The GPU's side behind the handles of `batch`, `attention` and `kernels`: the C structures turned into the kernels' parameters.
//!
//! `without` stands in where the library is built without CUDA: then nothing of it can be opened, and the header is the same.

#[cfg(feature = "cuda")]
mod with;
#[cfg(not(feature = "cuda"))]
mod without;

#[cfg(feature = "cuda")]
pub(crate) use with::*;
#[cfg(not(feature = "cuda"))]
pub(crate) use without::*;

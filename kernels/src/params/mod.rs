//! Kernel parameters: one `repr(C)` struct each, passed by value.
//!
//! `tests/params.rs` generates `kernels/cuda/params.h` from the files of this folder, and also fails when it is out of date. Fields
//! are `u32`, `i32`, `u64`, `f32`, arrays and structs of them; device pointers are `u64`; wide fields come first, so that there is
//! no padding. `launch` uses these structs and checks every value first. This module does not depend on the driver.

mod append;
mod attention;
mod boundary;
mod crc;
mod gather;
mod sketch;

pub use append::{AppendParams, AppendPart};
pub use attention::{AttentionMassParams, AttentionParams};
pub use boundary::{
    BAD_UPDATE, BoundaryApplyParams, BoundaryGateParams, BoundaryTablesParams, BoundaryUpdate, BoundaryWords,
    GateOpenParams, GateState, GateWords,
};
pub use crc::{CrcItem, CrcParams};
pub use gather::{CopyFragment, CopyListParams, GatherItem, GatherLayout, GatherParams};
pub use sketch::{SKETCH_OPEN, SKETCH_UNKNOWN, SketchBuildParams, SketchItem, SketchScoresParams};

/// A struct that a kernel takes by value.
///
/// # Safety
///
/// `repr(C)` without padding, declared equally in `kernels/cuda/params.h`.
pub unsafe trait KernelParams: Copy + 'static {}

/// Mark each struct as a kernel's parameter, and record its size for the header's assertions.
macro_rules! kernel_params {
    ($($name:ident),* $(,)?) => {
        $(
            // SAFETY: the struct is `repr(C)`; its size is asserted in the generated header, which has the same fields.
            unsafe impl KernelParams for $name {}
        )*
        /// Name and bytes of every struct in `kernels/cuda/params.h`, for the assertions at its end.
        pub const SIZES: &[(&str, usize)] = &[$((stringify!($name), size_of::<$name>())),*];
    };
}

kernel_params!(
    AttentionParams,
    AttentionMassParams,
    AppendParams,
    AppendPart,
    BoundaryApplyParams,
    BoundaryGateParams,
    BoundaryTablesParams,
    BoundaryUpdate,
    BoundaryWords,
    GateOpenParams,
    GateState,
    GateWords,
    CopyFragment,
    CopyListParams,
    CrcItem,
    CrcParams,
    GatherItem,
    GatherLayout,
    GatherParams,
    SketchBuildParams,
    SketchItem,
    SketchScoresParams,
);

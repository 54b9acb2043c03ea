//! Paged attention on the CPU: f32, pages read in place, vector units chosen at run time.
//!
//! A page gives each query row a partial result ([`Partials`]), which depends on nothing but the row's query and the page. A row's
//! result folds its pages in index order. So the bits do not depend on which pages were readable first, on the other rows, or on the
//! number of threads. All vector units compute in the same order over 16 lanes, so they agree to the bit too.

mod batch;
mod fold;
mod lanes;
mod page;
mod threads;
mod tile;

pub use batch::{Batch, Vectors};
pub use fold::{Fold, Page};
pub use page::{Head, Pages, Partials, Room, Rows};
pub use threads::{MaxThreads, Parallel, use_openmp};

use lanes::{LANES, Lanes};

/// Instructions that the kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorUnit {
    /// Plain Rust.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512.
    Avx512,
}

impl VectorUnit {
    /// Return the widest one of this machine.
    #[must_use]
    pub fn widest() -> VectorUnit {
        Self::all().next_back().unwrap_or(VectorUnit::Portable)
    }

    /// Return those of this machine, the widest last.
    pub fn all() -> impl DoubleEndedIterator<Item = VectorUnit> {
        [VectorUnit::Portable, VectorUnit::Avx2, VectorUnit::Avx512].into_iter().filter(|unit| unit.is_here())
    }

    /// Run a task with the instructions of this unit.
    ///
    /// # Safety
    /// The contract of the task.
    ///
    /// # Panics
    /// This machine does not have the unit.
    unsafe fn run(self, task: impl Task) {
        assert!(self.is_here(), "{self:?} is not a unit of this machine");
        // SAFETY: the unit is here; the caller's contract.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                VectorUnit::Avx512 => avx512(task),
                #[cfg(target_arch = "x86_64")]
                VectorUnit::Avx2 => avx2(task),
                _ => task.run::<[f32; LANES]>(),
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn is_here(self) -> bool {
        match self {
            VectorUnit::Portable => true,
            VectorUnit::Avx2 => {
                is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") && is_x86_feature_detected!("avx2")
            }
            VectorUnit::Avx512 => VectorUnit::Avx2.is_here() && is_x86_feature_detected!("avx512f"),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_here(self) -> bool {
        self == VectorUnit::Portable
    }
}

/// Work that is compiled for each unit.
trait Task {
    /// # Safety
    /// The unit of `V` was detected on this machine, and what the implementation states.
    unsafe fn run<V: Lanes>(self);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2(task: impl Task) {
    // SAFETY: the caller's contract.
    unsafe { task.run::<lanes::Avx2>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn avx512(task: impl Task) {
    // SAFETY: the caller's contract.
    unsafe { task.run::<lanes::Avx512>() }
}

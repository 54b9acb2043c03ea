//! The only module that imports atomics: code shared between two threads or two processes uses it, so that loom can replace the
//! atomics (`RUSTFLAGS="--cfg loom"`).
//!
//! Loom models SeqCst *fences*, not SeqCst accesses: code that needs a store-load order writes a relaxed access, a `fence(SeqCst)`
//! and a relaxed access.

#[cfg(not(loom))]
pub use core::hint::spin_loop;
#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub use loom::hint::spin_loop;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

//! Whether a stream of the engine's waits for a word of ours.
//!
//! Streams share the hardware's queues, and a kernel that stands behind such a wait in the same queue waits with it. What ends the
//! wait must therefore not be a kernel: while the gate is shut, copies go by the copy engines alone, and digests are computed by
//! the host. Who enqueues kernels holds the gate meanwhile, so that they are all in their queues before a wait can be.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts the waits that are not over.
#[derive(Default)]
pub(crate) struct Gate(Mutex<usize>);

impl Gate {
    /// A stream will wait.
    pub fn shut(&self) {
        *self.enter() += 1;
    }

    /// It does not any more.
    pub fn open(&self) {
        let mut waits = self.enter();
        *waits = waits.saturating_sub(1);
    }

    /// The waits; no other begins while this is held.
    pub fn enter(&self) -> MutexGuard<'_, usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

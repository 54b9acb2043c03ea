//! Counts engine streams that wait for a memory word which kvtide will write.
//!
//! Streams share hardware queues, and a kernel queued behind such a wait in the same queue waits too. So the work that ends the
//! wait must not need a kernel: while a wait is pending, copies use only copy engines, and the host computes digests. Code that
//! enqueues kernels holds the gate meanwhile, so that these kernels are in their queues before a wait can be.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of pending waits.
#[derive(Default)]
pub(crate) struct Gate(Mutex<usize>);

impl Gate {
    /// Add a wait, before a stream begins it.
    pub fn shut(&self) {
        *self.enter() += 1;
    }

    /// Remove a wait that has ended.
    pub fn open(&self) {
        let mut waits = self.enter();
        *waits = waits.saturating_sub(1);
    }

    /// Lock the number of waits. No wait can begin while the lock is held.
    pub fn enter(&self) -> MutexGuard<'_, usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

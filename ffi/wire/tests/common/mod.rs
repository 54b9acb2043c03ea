//! A ring in private memory, for models and hostile peers: the same slots and words as in a region.

use kvtide_wire::ring::{IndexLine, Memory, Slot};
use kvtide_wire::sync::AtomicU32;
use std::sync::Arc;

/// Ring memory that a producer, a consumer and a disturbing thread share by cloning.
#[derive(Clone)]
pub struct HeapRing(Arc<(Vec<Slot>, IndexLine, IndexLine)>);

impl HeapRing {
    pub fn new(entries: usize) -> HeapRing {
        HeapRing(Arc::new(((0..entries).map(|_| Slot::new()).collect(), IndexLine::new(), IndexLine::new())))
    }
}

impl Memory for HeapRing {
    fn slots(&self) -> &[Slot] {
        &self.0.0
    }
    fn tail(&self) -> &AtomicU32 {
        &self.0.1.index
    }
    fn head(&self) -> &AtomicU32 {
        &self.0.2.index
    }
}

//! Memory for encoded pages, between the device and the coding threads.
//!
//! One block of memory, registered with the disk's ring once and divided first-fit into extents of whole units. A request larger
//! than the whole block gets memory of its own, one request at a time. So the coding memory of a disk is bounded; requests that
//! find none wait.

use crate::memory::Memory;
use kvtide_wire::os::map::Access;
use kvtide_wire::os::memfd::Memfd;
use std::io;
use std::sync::Arc;

/// Extents are multiples of this: no two works write to one cache line, and pages are aligned for direct I/O.
const UNIT: u64 = 4096;

/// Memory for the pages of one transfer.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The memory that contains it.
    pub memory: Arc<Memory>,
    /// Offset in the memory.
    pub at: u64,
    bytes: u64,
    /// Its memory is separate from the arena.
    own: bool,
}

/// Coding memory of a disk.
#[derive(Debug)]
pub struct Arena {
    memory: Arc<Memory>,
    /// Free extents (offset, bytes), sorted; neighbours are merged.
    free: Vec<(u64, u64)>,
    /// An extent with separate memory is in use.
    own: bool,
}

/// Return the bytes that a page takes in an extent.
pub fn taken(bytes: u32) -> u64 {
    u64::from(bytes).next_multiple_of(UNIT)
}

fn memory(bytes: u64) -> io::Result<Arc<Memory>> {
    let map = Memfd::shared("kvtide-code", bytes).and_then(|memfd| memfd.map(Access::ReadWrite));
    let memory = Memory::new(map.map_err(io::Error::other)?);
    memory.map(Arc::new).ok_or_else(|| io::Error::other("the shared memory is not writable"))
}

impl Arena {
    /// Create an arena of `bytes`, rounded down to whole units.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(bytes: u64) -> io::Result<Arena> {
        Ok(Arena { memory: memory(bytes)?, free: vec![(0, bytes / UNIT * UNIT)], own: false })
    }

    /// Return the memory, to register it.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Take an extent; None if none is free now.
    ///
    /// # Errors
    /// Separate memory is needed, and there is not enough.
    pub fn take(&mut self, bytes: u64) -> io::Result<Option<Extent>> {
        let bytes = bytes.max(1).next_multiple_of(UNIT);
        if bytes > self.memory.bytes() / UNIT * UNIT {
            if self.own {
                return Ok(None);
            }
            let memory = memory(bytes)?;
            self.own = true;
            return Ok(Some(Extent { memory, at: 0, bytes, own: true }));
        }
        let Some(place) = self.free.iter().position(|(_, free)| *free >= bytes) else { return Ok(None) };
        let (at, free) = self.free[place];
        if free == bytes {
            self.free.remove(place);
        } else {
            self.free[place] = (at + bytes, free - bytes);
        }
        Ok(Some(Extent { memory: Arc::clone(&self.memory), at, bytes, own: false }))
    }

    /// Return an unused extent.
    pub fn give(&mut self, extent: Extent) {
        if extent.own {
            self.own = false;
            return;
        }
        let place = self.free.partition_point(|(at, _)| *at < extent.at);
        let (mut begin, mut end) = (extent.at, extent.at + extent.bytes);
        let mut from = place;
        if let Some((at, bytes)) = place.checked_sub(1).map(|before| self.free[before])
            && at + bytes == begin
        {
            (begin, from) = (at, place - 1);
        }
        let mut to = place;
        if let Some((at, bytes)) = self.free.get(place)
            && *at == end
        {
            (end, to) = (at + bytes, place + 1);
        }
        self.free.splice(from..to, [(begin, end - begin)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn extents_stand_apart_and_all_come_back(steps in prop::collection::vec((any::<bool>(), 0u64..40_000, any::<prop::sample::Index>()), 1..200)) {
            let whole = 16 * UNIT;
            let mut arena = Arena::new(whole).unwrap();
            let mut held: Vec<Extent> = Vec::new();
            for (takes, bytes, which) in steps {
                if takes {
                    if let Some(extent) = arena.take(bytes).unwrap() {
                        prop_assert!(extent.bytes >= bytes && extent.at + extent.bytes <= whole);
                        let apart = |other: &Extent| other.at + other.bytes <= extent.at || extent.at + extent.bytes <= other.at;
                        prop_assert!(held.iter().all(apart));
                        held.push(extent);
                    }
                } else if !held.is_empty() {
                    arena.give(held.swap_remove(which.index(held.len())));
                }
                let used: u64 = held.iter().map(|extent| extent.bytes).sum();
                prop_assert_eq!(arena.free.iter().map(|(_, bytes)| bytes).sum::<u64>() + used, whole);
                prop_assert!(arena.free.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0), "neighbours are merged");
            }
            held.into_iter().for_each(|extent| arena.give(extent));
            prop_assert_eq!(&arena.free[..], &[(0, whole)]);
        }
    }

    #[test]
    fn what_never_fits_gets_memory_of_its_own_one_at_a_time() {
        let mut arena = Arena::new(4 * UNIT).unwrap();
        let large = arena.take(5 * UNIT).unwrap().unwrap();
        assert!(!Arc::ptr_eq(&large.memory, arena.memory()) && large.memory.bytes() == 5 * UNIT);
        assert!(arena.take(5 * UNIT).unwrap().is_none());
        assert!(arena.take(4 * UNIT).unwrap().is_some(), "the arena itself is still usable");
        arena.give(large);
        assert!(arena.take(6 * UNIT).unwrap().is_some());
    }
}

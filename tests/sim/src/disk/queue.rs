//! Transfers of one daemon: waiting, on the device, or ended and not yet reported.

use super::fault::DiskFault;
use super::grants::Part;
use crate::base::Rng;
use crate::memory::Tag;
use kvtide_tiering::api::{DiskSlot, IoClass, IoKind, Status};
use std::collections::BTreeMap;

/// Owner of the disk's copies, instead of a session index.
pub const DISK: usize = usize::MAX;

/// Result of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Status for the core.
    pub status: Status,
    /// Planes with other bytes than those written.
    pub bad: Vec<u32>,
    /// Content of the slot now, one page per part.
    pub written: Option<Vec<Box<[Tag]>>>,
}

/// A transfer.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Direction.
    pub kind: IoKind,
    /// Urgency.
    pub class: IoClass,
    /// Slot on NVMe.
    pub at: DiskSlot,
    /// Pages, by ascending plane.
    pub parts: Vec<Part>,
    /// Pages on the device.
    pub open: usize,
    /// Injected fault.
    pub fault: Option<DiskFault>,
    /// Content of host memory when a write began: the basis of its checksums.
    pub found: Vec<Box<[Tag]>>,
    /// Planes that were flipped in host memory.
    pub flipped: Vec<u16>,
    /// Result, once it has ended.
    pub ended: Option<Ended>,
}

/// All transfers in flight.
#[derive(Debug)]
pub struct Queue {
    all: BTreeMap<u32, Transfer>,
    waiting: Vec<u32>,
    active: usize,
    depth: usize,
}

impl Queue {
    /// Create an empty queue to a device that does `depth` transfers at once.
    #[must_use]
    pub fn new(depth: usize) -> Queue {
        Queue { all: BTreeMap::new(), waiting: Vec::new(), active: 0, depth }
    }

    /// Return the number of transfers in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Return whether nothing is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Return all transfers in flight.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Transfer)> {
        self.all.iter().map(|(id, transfer)| (*id, transfer))
    }

    /// Return a transfer in flight.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut Transfer> {
        self.all.get_mut(&id)
    }

    /// Return whether a transfer is in flight.
    #[must_use]
    pub fn contains(&self, id: u32) -> bool {
        self.all.contains_key(&id)
    }

    /// Add a waiting transfer.
    pub fn push(&mut self, id: u32, transfer: Transfer) {
        self.all.insert(id, transfer);
        self.waiting.push(id);
    }

    /// Return the next transfer for the device, if it has room: the most urgent, mostly the oldest of them; sometimes any.
    pub fn next(&mut self, rng: &mut Rng) -> Option<u32> {
        if self.waiting.is_empty() || self.active == self.depth {
            return None;
        }
        let most_urgent = self.waiting.iter().map(|id| self.all[id].class).min();
        let at = match rng.below(20) {
            0 => rng.index(self.waiting.len()),
            n => {
                let urgent =
                    (0..self.waiting.len()).filter(|at| Some(self.all[&self.waiting[*at]].class) == most_urgent);
                let urgent: Vec<usize> = urgent.collect();
                if n < 16 { urgent[0] } else { rng.pick(&urgent) }
            }
        };
        self.active += 1;
        Some(self.waiting.remove(at))
    }

    /// Return whether a transfer still waits.
    #[must_use]
    pub fn waits(&self, id: u32) -> bool {
        self.waiting.contains(&id)
    }

    /// Record that the device has ended a transfer.
    pub fn ended(&mut self) {
        self.active -= 1;
    }

    /// Remove a transfer after its end is reported to the core.
    pub fn remove(&mut self, id: u32) -> Option<Transfer> {
        self.all.remove(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::{Queue, Transfer};
    use crate::base::Rng;
    use kvtide_tiering::api::{DiskSlot, IoClass, IoKind};

    #[test]
    fn the_urgent_mostly_overtake_and_the_device_has_a_depth() {
        let transfer = |class| Transfer {
            kind: IoKind::Read,
            class,
            at: DiskSlot { slab: 0, slot: 0, generation: 1 },
            parts: Vec::new(),
            open: 0,
            fault: None,
            found: Vec::new(),
            flipped: Vec::new(),
            ended: None,
        };
        let (mut rng, mut overtook) = (Rng::new(1), 0);
        for _ in 0..200 {
            let mut queue = Queue::new(2);
            for (id, class) in [IoClass::WriteBack, IoClass::Prefetch, IoClass::Demand].into_iter().enumerate() {
                queue.push(id as u32, transfer(class));
            }
            let first = queue.next(&mut rng);
            overtook += u32::from(first == Some(2));
            assert!(queue.next(&mut rng).is_some() && queue.next(&mut rng).is_none());
            queue.ended();
            assert!(queue.next(&mut rng).is_some() && queue.next(&mut rng).is_none());
        }
        assert!((150..200).contains(&overtook), "{overtook}");
    }
}

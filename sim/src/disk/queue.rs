//! Transfers of one daemon: waiting, on the device, or ended and not yet told.

use super::fault::DiskFault;
use super::grants::Part;
use crate::base::Rng;
use crate::memory::Tag;
use kvtide_tiering::api::{DiskSlot, IoClass, IoKind, Status};
use std::collections::BTreeMap;

/// Who runs the disk's copies, among the sessions' indices.
pub const DISK: usize = usize::MAX;

/// How a transfer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// As the core is told.
    pub status: Status,
    /// Planes whose bytes are not what was written.
    pub bad: Vec<u32>,
    /// What stands in the slot now, a page a part.
    pub written: Option<Vec<Box<[Tag]>>>,
}

/// A transfer.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Which way.
    pub kind: IoKind,
    /// How urgent.
    pub class: IoClass,
    /// Where on NVMe.
    pub at: DiskSlot,
    /// Pages, by ascending plane.
    pub parts: Vec<Part>,
    /// Pages on the device.
    pub open: usize,
    /// What goes wrong with it.
    pub fault: Option<DiskFault>,
    /// What a write found in host memory when it began: what its checksums are of.
    pub found: Vec<Box<[Tag]>>,
    /// Planes that were flipped in host memory.
    pub flipped: Vec<u16>,
    /// How it ended, once it did.
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

    /// Transfer in flight.
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

    /// Let a transfer wait.
    pub fn push(&mut self, id: u32, transfer: Transfer) {
        self.all.insert(id, transfer);
        self.waiting.push(id);
    }

    /// Return the next transfer for the device, if it has room: the most urgent, mostly the oldest of them; now and then any.
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

    /// Return whether a transfer waits still.
    #[must_use]
    pub fn waits(&self, id: u32) -> bool {
        self.waiting.contains(&id)
    }

    /// The device has ended a transfer.
    pub fn ended(&mut self) {
        self.active -= 1;
    }

    /// Return the core is told of a transfer's end.
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

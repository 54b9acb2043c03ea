//! The daemon's records of grants: the block generation in each slot, the written content, and the transfers in flight.
//!
//! They are as strict as the daemon's checksum over generation, plane and payload. They are stricter where the checksum would show a
//! broken core only later, as a bad page.

use crate::memory::Tag;
use kvtide_tiering::api::{DiskSlot, IoKind};

/// A violation of the rules of slots by the core, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misuse(pub String);

fn misuse<T>(what: impl Into<String>) -> Result<T, Misuse> {
    Err(Misuse(what.into()))
}

/// One page of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Plane.
    pub plane: u16,
    /// Host frame, as named by the core.
    pub host: kvtide_tiering::api::HostFrame,
    /// Place of that frame.
    pub memory: crate::memory::Place,
}

#[derive(Clone, Debug, Default)]
struct Page {
    /// Written content, if a write of this generation succeeded.
    written: Option<Box<[Tag]>>,
    reads: u16,
    writing: bool,
}

#[derive(Clone, Debug)]
struct Slot {
    generation: u32,
    busy: u32,
    pages: Vec<Page>,
}

#[derive(Debug)]
struct Grant {
    region: usize,
    slots: Vec<Slot>,
}

/// All grants of one daemon.
#[derive(Debug)]
pub struct Grants {
    all: Vec<Option<Grant>>,
    planes: u16,
}

impl Grants {
    /// Create an empty set of grants, in a space of `planes` planes.
    #[must_use]
    pub fn new(planes: u16) -> Grants {
        Grants { all: Vec::new(), planes }
    }

    /// Grant a region of `slots` blank slots, under the smallest free id.
    pub fn add(&mut self, region: usize, slots: u32) -> u32 {
        let id = self.all.iter().position(Option::is_none).unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        });
        let blank = Slot { generation: 0, busy: 0, pages: vec![Page::default(); usize::from(self.planes)] };
        self.all[id] = Some(Grant { region, slots: vec![blank; slots as usize] });
        id as u32
    }

    /// End a grant and return its region.
    pub fn remove(&mut self, slab: u32) -> Result<usize, Misuse> {
        let Some(place) = self.all.get_mut(slab as usize) else {
            return misuse(format!("slab {slab} on NVMe given back, which was never granted"));
        };
        match place.take() {
            None => misuse(format!("slab {slab} on NVMe given back, which is not granted")),
            Some(grant) if grant.slots.iter().any(|slot| slot.busy > 0) => {
                misuse(format!("slab {slab} on NVMe given back under its transfers"))
            }
            Some(grant) => Ok(grant.region),
        }
    }

    /// Return the region of a grant.
    #[must_use]
    pub fn region(&self, slab: u32) -> Option<usize> {
        self.all.get(slab as usize)?.as_ref().map(|grant| grant.region)
    }

    /// Return the number of grants.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.iter().flatten().count()
    }

    /// Return whether nothing is granted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Record the start of a transfer; return whether the slot belonged to another block before.
    pub fn enter(&mut self, kind: IoKind, at: DiskSlot, parts: &[Part]) -> Result<bool, Misuse> {
        let Some(slot) = self.slot(at) else {
            return misuse(format!("{kind:?} at {at:?}, which is not granted"));
        };
        let reused = slot.generation > 0 && at.generation > slot.generation;
        if at.generation < slot.generation || (kind == IoKind::Read && at.generation != slot.generation) {
            return misuse(format!("{kind:?} at {at:?}, which holds generation {}", slot.generation));
        }
        if at.generation > slot.generation {
            if slot.busy > 0 {
                return misuse(format!("{at:?} is another block's while {} transfers of the last use it", slot.busy));
            }
            slot.generation = at.generation;
            slot.pages.fill(Page::default());
        }
        for part in parts {
            let page = &mut slot.pages[usize::from(part.plane)];
            match kind {
                IoKind::Read if page.written.is_none() || page.writing => {
                    return misuse(format!("plane {} read at {at:?}, where it does not stand", part.plane));
                }
                IoKind::Write if page.reads > 0 || page.writing => {
                    return misuse(format!("plane {} written at {at:?} under another transfer of it", part.plane));
                }
                IoKind::Read => page.reads += 1,
                // A tail that was written while its sequence was parked, and extended since, is written again.
                IoKind::Write => (page.writing, page.written) = (true, None),
            }
        }
        slot.busy += 1;
        Ok(reused)
    }

    /// Record the end of a transfer. The content of a successful write is valid from now on.
    pub fn leave(&mut self, kind: IoKind, at: DiskSlot, parts: &[Part], written: Option<Vec<Box<[Tag]>>>) {
        let Some(slot) = self.slot(at) else { return };
        slot.busy -= 1;
        let mut written = written.into_iter().flatten();
        for part in parts {
            let page = &mut slot.pages[usize::from(part.plane)];
            match kind {
                IoKind::Read => page.reads -= 1,
                IoKind::Write => {
                    page.writing = false;
                    page.written = written.next();
                }
            }
        }
    }

    /// Return the written content of a page.
    #[must_use]
    pub fn written(&self, at: DiskSlot, plane: u16) -> Option<&[Tag]> {
        let grant = self.all.get(at.slab as usize)?.as_ref()?;
        grant.slots.get(at.slot as usize)?.pages[usize::from(plane)].written.as_deref()
    }

    fn slot(&mut self, at: DiskSlot) -> Option<&mut Slot> {
        self.all.get_mut(at.slab as usize)?.as_mut()?.slots.get_mut(at.slot as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::{Grants, Part};
    use crate::memory::Place;
    use kvtide_tiering::api::{DiskSlot, HostFrame, IoKind};

    fn at(generation: u32) -> DiskSlot {
        DiskSlot { slab: 0, slot: 1, generation }
    }

    fn part(plane: u16) -> Part {
        Part { plane, host: HostFrame { slab: 0, slot: 0 }, memory: Place { arena: 0, frame: 0 } }
    }

    #[test]
    fn a_slot_is_written_read_and_reused_in_order_only() {
        let mut grants = Grants::new(2);
        assert!(grants.enter(IoKind::Write, at(1), &[part(0)]).is_err(), "not granted");
        assert_eq!(grants.add(7, 2), 0);
        assert!(grants.enter(IoKind::Read, at(0), &[part(0)]).is_err(), "blank");
        assert_eq!(grants.enter(IoKind::Write, at(1), &[part(0)]), Ok(false));
        assert!(grants.enter(IoKind::Read, at(1), &[part(0)]).is_err(), "not written yet");
        assert!(grants.enter(IoKind::Write, at(2), &[part(0)]).is_err(), "another block's, under a transfer");
        assert!(grants.remove(0).is_err(), "under a transfer");
        grants.add(7, 2);
        assert_eq!(grants.enter(IoKind::Write, at(1), &[part(0)]), Ok(false));
        grants.leave(IoKind::Write, at(1), &[part(0)], Some(vec![vec![5, 6].into()]));
        assert_eq!(grants.enter(IoKind::Read, at(1), &[part(0)]), Ok(false));
        grants.leave(IoKind::Read, at(1), &[part(0)], None);
        assert_eq!(grants.written(at(1), 0), Some(&[5, 6][..]));
        assert_eq!(grants.enter(IoKind::Write, at(1), &[part(0)]), Ok(false), "anew");
        assert!(grants.enter(IoKind::Read, at(1), &[part(0)]).is_err(), "under its write");
        grants.leave(IoKind::Write, at(1), &[part(0)], None);
        assert!(grants.enter(IoKind::Read, at(1), &[part(0)]).is_err(), "that failed");
        assert!(grants.enter(IoKind::Read, at(1), &[part(1)]).is_err(), "the other plane is blank");
        assert_eq!(grants.enter(IoKind::Write, at(2), &[part(1)]), Ok(true));
        grants.leave(IoKind::Write, at(2), &[part(1)], None);
        assert!(grants.enter(IoKind::Read, at(2), &[part(1)]).is_err(), "its write failed");
        assert!(grants.enter(IoKind::Read, at(1), &[part(0)]).is_err(), "of the block before");
        assert_eq!((grants.remove(0), grants.remove(0).is_err()), (Ok(7), true));
    }
}

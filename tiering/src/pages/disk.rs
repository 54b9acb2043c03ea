//! Slots on NVMe: slabs that the node granted, and which block has which slot. A slot holds all pages of one block.

use super::host::SLABS_MAX;
use crate::api::{DiskSlot, NONE, Status};
use crate::error::Error;
use crate::lists::{Linked, Links, List};
use serde::{Deserialize, Serialize};

/// `block` of a slot that failed too often to be used again.
const BAD: u32 = NONE - 1;

/// One slot: free (in its slab's list), bad, or of a block.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct SlotRec {
    links: Links,
    block: u32,
    /// Blocks that it has held.
    generation: u32,
    slab: u16,
}

impl Linked for SlotRec {
    fn links(&self) -> &Links {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Slab {
    links: Links,
    live: bool,
    base: u32,
    slots: u32,
    free: List,
}

impl Linked for Slab {
    fn links(&self) -> &Links {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// All NVMe space of the space.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Disk {
    recs: Vec<SlotRec>,
    slabs: Vec<Slab>,
    /// Slabs with a free slot.
    open: List,
    /// Record ranges of returned slabs: base, slots.
    holes: Vec<(u32, u32)>,
    /// Slots granted.
    pub granted: u32,
    /// Slots that blocks have.
    pub used: u32,
    /// Slots that failed too often.
    pub bad: u32,
    /// Highest generation in a slab that went back: the same place may come again under any id.
    floor: u32,
    /// A NeedDisk was sent and not answered.
    pub asked: bool,
    /// The node refused since space was last freed anywhere.
    pub refused: bool,
    /// No block without a slot can have one, and no dirty page has one: writing down makes no host frame free.
    pub exhausted: bool,
    /// Writes that failed in a row, over all slots.
    pub write_fails: u8,
    /// How the last of them failed.
    pub failed_with: Status,
    /// Slots that were given up since a write last succeeded.
    pub suspects: u8,
    /// No write starts before this time.
    pub write_at: u64,
    /// Reads that failed in a row, over all slots.
    pub read_fails: u8,
    /// No read starts before this time.
    pub read_at: u64,
}

impl Default for Disk {
    fn default() -> Self {
        Disk {
            recs: Vec::new(),
            slabs: Vec::new(),
            open: List::default(),
            holes: Vec::new(),
            granted: 0,
            used: 0,
            bad: 0,
            floor: 0,
            asked: false,
            refused: false,
            exhausted: false,
            write_fails: 0,
            failed_with: Status::Ok,
            suspects: 0,
            write_at: 0,
            read_fails: 0,
            read_at: 0,
        }
    }
}

impl Disk {
    /// Takes a grant in. Allocates: grants are rare.
    pub fn grant(&mut self, slab: u32, slots: u32, generation: u32) -> Result<(), Error> {
        let refuse = |why| Err(Error::Slab { slab, why });
        if slab >= SLABS_MAX {
            return refuse("id is not below 65,536");
        }
        if slots == 0 || u64::from(slots) + self.recs.len() as u64 >= u64::from(BAD) {
            return refuse("slots are none or more than can be counted");
        }
        if self.slabs.get(slab as usize).is_some_and(|s| s.live) {
            return refuse("id is in use");
        }
        if self.slabs.len() <= slab as usize {
            self.slabs.resize(slab as usize + 1, Slab::default());
        }
        let rec =
            SlotRec { links: Links::default(), block: NONE, generation: self.floor.max(generation), slab: slab as u16 };
        let base = match self.holes.iter().position(|&(_, n)| n == slots) {
            Some(hole) => {
                let (base, n) = self.holes.swap_remove(hole);
                self.recs[base as usize..(base + n) as usize].fill(rec);
                base
            }
            None => {
                let base = self.recs.len() as u32;
                self.recs.resize((base + slots) as usize, rec);
                base
            }
        };
        let mut free = List::default();
        for at in base..base + slots {
            free.push_back(&mut self.recs, at);
        }
        self.slabs[slab as usize] = Slab { links: Links::default(), live: true, base, slots, free };
        self.open.push_back(&mut self.slabs, slab);
        self.granted += slots;
        Ok(())
    }

    /// Gives a block a slot, if one is free; its generation is a new one.
    pub fn alloc(&mut self, block: u32) -> Option<u32> {
        let slab = self.open.head;
        if slab == NONE {
            return None;
        }
        let s = &mut self.slabs[slab as usize];
        let at = s.free.pop_front(&mut self.recs)?;
        if s.free.is_empty() {
            self.open.remove(&mut self.slabs, slab);
        }
        self.used += 1;
        let rec = &mut self.recs[at as usize];
        rec.block = block;
        rec.generation = rec.generation.wrapping_add(1);
        Some(at)
    }

    /// Frees a block's slot. No transfer names it.
    pub fn free(&mut self, at: u32) {
        self.used -= 1;
        let slab = u32::from(self.recs[at as usize].slab);
        self.recs[at as usize].block = NONE;
        let s = &mut self.slabs[slab as usize];
        // The longest unused first, so that blocks of one time stand together.
        s.free.push_back(&mut self.recs, at);
        if s.free.len == 1 {
            self.open.push_back(&mut self.slabs, slab);
        }
    }

    /// A block's slot is not used again.
    pub fn retire(&mut self, at: u32) {
        self.used -= 1;
        self.bad += 1;
        self.recs[at as usize].block = BAD;
    }

    /// The block that has the slot.
    pub fn block_in(&self, at: u32) -> u32 {
        self.recs[at as usize].block
    }

    /// Where a slot is, as transfers name it.
    pub fn location(&self, at: u32) -> DiskSlot {
        let rec = &self.recs[at as usize];
        let base = self.slabs[usize::from(rec.slab)].base;
        DiskSlot { slab: u32::from(rec.slab), slot: at - base, generation: rec.generation }
    }

    /// Slots that blocks have or may get.
    pub fn usable(&self) -> u32 {
        self.granted - self.bad
    }

    /// Free slots.
    pub fn free_slots(&self) -> u32 {
        self.granted - self.bad - self.used
    }

    /// A wholly free slab that can go while at least `keep` free slots stay.
    pub fn idle_slab(&self, keep: u32) -> Option<u32> {
        let free = self.free_slots();
        self.open.iter(&self.slabs).find(|&s| {
            let slab = &self.slabs[s as usize];
            slab.free.len == slab.slots && free - slab.slots >= keep
        })
    }

    /// Takes a wholly free slab out.
    pub fn remove(&mut self, slab: u32) {
        let s = std::mem::take(&mut self.slabs[slab as usize]);
        self.slabs[slab as usize].links = s.links;
        self.open.remove(&mut self.slabs, slab);
        self.granted -= s.slots;
        let range = s.base as usize..(s.base + s.slots) as usize;
        self.floor = self.recs[range].iter().map(|r| r.generation).fold(self.floor, u32::max);
        self.holes.push((s.base, s.slots));
    }

    /// Bytes of all vectors.
    pub fn bytes(&self) -> usize {
        self.recs.capacity() * size_of::<SlotRec>()
            + self.slabs.capacity() * size_of::<Slab>()
            + self.holes.capacity() * size_of::<(u32, u32)>()
    }

    /// Free slots, bad slots and slots of blocks, counted the slow way.
    pub fn count(&self) -> (u32, u32, u32) {
        let (mut free, mut bad, mut used) = (0, 0, 0);
        for slab in self.slabs.iter().filter(|s| s.live) {
            let listed = slab.free.iter(&self.recs).count() as u32;
            let recs = &self.recs[slab.base as usize..(slab.base + slab.slots) as usize];
            let of = |block: &dyn Fn(u32) -> bool| recs.iter().filter(|r| block(r.block)).count() as u32;
            (free, bad) = (free + listed, bad + of(&|b| b == BAD));
            used += of(&|b| b < BAD);
        }
        (free, bad, used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    proptest! {
        #[test]
        fn slots_are_handed_out_once_and_never_under_an_old_generation(
            ops in prop::collection::vec((0u8..6, 0u32..64), 1..300)
        ) {
            let mut disk = Disk::default();
            let (mut live, mut slabs) = (BTreeSet::new(), BTreeSet::new());
            let mut newest: BTreeMap<(u32, u32), u32> = BTreeMap::new();
            for (op, n) in ops {
                match op {
                    0 => {
                        let (slab, slots) = (n % 8, 1 + n % 5);
                        prop_assert_eq!(disk.grant(slab, slots, 0).is_ok(), slabs.insert(slab));
                    }
                    1..=2 => if let Some(at) = disk.alloc(n) {
                        prop_assert!(live.insert(at));
                        prop_assert_eq!(disk.block_in(at), n);
                        let DiskSlot { slab, slot, generation } = disk.location(at);
                        let before = newest.insert((slab, slot), generation);
                        prop_assert!(before.is_none_or(|b| b < generation));
                    },
                    3 => if let Some(&at) = live.iter().nth(n as usize % live.len().max(1)) {
                        live.remove(&at);
                        if n % 9 == 0 { disk.retire(at) } else { disk.free(at) }
                    },
                    _ => if let Some(slab) = disk.idle_slab(n % 3) {
                        disk.remove(slab);
                        prop_assert!(slabs.remove(&slab));
                    },
                }
                prop_assert_eq!(disk.count(), (disk.free_slots(), disk.bad, disk.used));
                prop_assert_eq!(disk.used as usize, live.len());
            }
        }
    }
}

//! An engine's own memory: blocks with ids of the engine, under names if its planes have separate ids.

use crate::base::{Rng, mix};
use crate::memory::{ArenaId, Arenas, Place, Tag};
use crate::model::Text;
use std::collections::BTreeMap;

/// A prefix that an engine has leased.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Content of the prefix.
    pub text: Text,
    /// Its blocks.
    pub blocks: u32,
    /// The channel of the owning thread.
    pub channel: usize,
    /// Earliest time of its expiry.
    pub until_us: u64,
}

/// The memory of one session.
#[derive(Debug)]
pub struct OwnMemory {
    /// Arena of the memory.
    pub arena: ArenaId,
    planes: u16,
    slots: usize,
    /// Free ids of each member.
    free: Vec<Vec<u32>>,
    /// Ids of each name, one per member; none while no request uses the name.
    names: Vec<Option<Vec<u32>>>,
    /// Leases, by sequence slot.
    pub leases: BTreeMap<u32, Lease>,
    /// Prefixes recently found by lookups.
    pub found: Vec<(Text, u32)>,
}

impl OwnMemory {
    /// Create `blocks` unused blocks.
    pub fn new(arenas: &mut Arenas, blocks: u32, members: u16, planes: u16, slots: usize) -> OwnMemory {
        let members = usize::from(members.clamp(1, planes));
        OwnMemory {
            arena: arenas.add(blocks * u32::from(planes), slots),
            planes,
            slots,
            free: vec![(0..blocks).collect(); members],
            names: vec![None; blocks as usize],
            leases: BTreeMap::new(),
            found: Vec::new(),
        }
    }

    /// Return whether planes have separate ids.
    pub fn is_apart(&self) -> bool {
        self.free.len() > 1
    }

    /// Return names of `count` unused blocks, if there are enough.
    pub fn take(&mut self, rng: &mut Rng, count: usize) -> Option<Vec<u32>> {
        if count == 0 || self.free[0].len() < count {
            return None;
        }
        let mut taken = Vec::with_capacity(count);
        for _ in 0..count {
            let ids = self.free.iter_mut().map(|free| free.swap_remove(rng.index(free.len()))).collect();
            let unused = self.names.iter().enumerate().filter(|(_, name)| name.is_none()).map(|(at, _)| at);
            let unused: Vec<usize> = unused.collect();
            let name = rng.pick(&unused);
            self.names[name] = Some(ids);
            taken.push(name as u32);
        }
        Some(taken)
    }

    /// Return the number of unused blocks.
    pub fn free(&self) -> usize {
        self.free[0].len()
    }

    /// Free these blocks: their names have no ids any more.
    pub fn give(&mut self, names: &[u32]) {
        for ids in names.iter().filter_map(|name| self.names[*name as usize].take()) {
            self.free.iter_mut().zip(ids).for_each(|(free, id)| free.push(id));
        }
    }

    /// Return the place of a plane of a block; `None` if the name has no ids.
    pub fn place(&self, name: u32, plane: u16) -> Option<Place> {
        let ids = self.names.get(name as usize)?.as_ref()?;
        let id = ids[usize::from(plane) % ids.len()];
        Some(Place { arena: self.arena, frame: id * u32::from(self.planes) + u32::from(plane) })
    }

    /// Return the content of a block that was never written.
    fn garbage(place: Place, slot: usize) -> Tag {
        mix(mix(place.arena as u64, u64::from(place.frame)), slot as u64) | 1 << 63
    }

    /// Fill blocks with garbage, as an engine does that reuses them.
    pub fn spoil(&self, arenas: &mut Arenas, names: &[u32]) {
        for place in self.places(names) {
            (0..self.slots).for_each(|slot| arenas.write(place, slot, Self::garbage(place, slot)));
        }
    }

    /// Return whether a page holds the garbage of `spoil`.
    pub fn is_spoilt(tags: &[Tag], place: Place) -> bool {
        tags.iter().enumerate().all(|(slot, tag)| *tag == Self::garbage(place, slot))
    }

    fn places(&self, names: &[u32]) -> impl Iterator<Item = Place> {
        names.iter().flat_map(|name| (0..self.planes).filter_map(|plane| self.place(*name, plane)))
    }

    /// Drop all requests and leases, which ended with their daemon.
    pub fn reset(&mut self) {
        let all: Vec<u32> = (0..self.names.len() as u32).collect();
        self.give(&all);
        self.leases.clear();
        self.found.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_for_blocks_of_their_own_until_they_are_given_back() {
        let (mut rng, mut arenas) = (Rng::new(1), Arenas::default());
        let mut own = OwnMemory::new(&mut arenas, 4, 2, 3, 2);
        let names = own.take(&mut rng, 3).unwrap();
        assert_eq!((own.take(&mut rng, 2), own.free(), own.is_apart()), (None, 1, true));
        let mut places: Vec<u32> = own.places(&names).map(|place| place.frame).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 9, "no two pages share a frame");
        own.spoil(&mut arenas, &names);
        let place = own.place(names[0], 1).unwrap();
        let spoilt = |arenas: &Arenas| OwnMemory::is_spoilt(arenas.get(place.arena).unwrap().frame(place.frame), place);
        assert!(spoilt(&arenas));
        arenas.write(place, 0, 7);
        assert!(!spoilt(&arenas));
        own.give(&names);
        assert_eq!((own.place(names[0], 1), own.free()), (None, 4));
        own.take(&mut rng, 4).unwrap();
        own.reset();
        assert_eq!(own.free(), 4);
    }
}

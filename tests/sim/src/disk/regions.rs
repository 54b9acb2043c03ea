//! Regions of the disk's file. A region with all its content outlives its grants and the daemons that made them.

use crate::memory::{ArenaId, Place};

#[derive(Debug)]
struct Region {
    arena: ArenaId,
    granted: bool,
}

/// All regions of a disk that were ever granted.
#[derive(Debug, Default)]
pub struct Regions {
    all: Vec<Region>,
    granted: usize,
}

impl Regions {
    /// Return a region for a new grant: a free one, or one never used before; `None` if there are `most` and all are taken.
    pub fn take(&mut self, most: usize, new: impl FnOnce() -> ArenaId) -> Option<usize> {
        if self.granted == most {
            return None;
        }
        self.granted += 1;
        if let Some(free) = self.all.iter().position(|region| !region.granted) {
            self.all[free].granted = true;
            return Some(free);
        }
        self.all.push(Region { arena: new(), granted: true });
        Some(self.all.len() - 1)
    }

    /// Free a region after its grant.
    pub fn put_back(&mut self, region: usize) {
        self.all[region].granted = false;
        self.granted -= 1;
    }

    /// Free all regions, because the daemon that held them is dead.
    pub fn put_back_all(&mut self) {
        self.all.iter_mut().for_each(|region| region.granted = false);
        self.granted = 0;
    }

    /// Return the arena of a region's pages.
    #[must_use]
    pub fn arena(&self, region: usize) -> ArenaId {
        self.all[region].arena
    }

    /// Return the place of a page in a slot, in a space of `planes` planes.
    #[must_use]
    pub fn place(&self, region: usize, slot: u32, plane: u16, planes: u16) -> Place {
        Place { arena: self.all[region].arena, frame: slot * u32::from(planes) + u32::from(plane) }
    }
}

//! Arenas: the tier 0 of one session or one host slab.

use crate::base::mix;

/// Content of one token slot of a page.
pub type Tag = u64;

/// Index of an arena; never reused within an episode.
pub type ArenaId = usize;

/// A frame in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Arena.
    pub arena: ArenaId,
    /// Frame in the arena.
    pub frame: u32,
}

/// Frames of equal slot count.
#[derive(Debug)]
pub struct Arena {
    slots: usize,
    tags: Vec<Tag>,
}

impl Arena {
    /// Create an arena full of garbage that no engine wrote.
    #[must_use]
    pub fn new(frames: u32, slots: usize, salt: u64) -> Arena {
        let tags = (0..frames as u64 * slots as u64).map(|i| mix(salt, i) | 1 << 63).collect();
        Arena { slots, tags }
    }

    /// Return the number of frames.
    #[must_use]
    pub fn frames(&self) -> u32 {
        (self.tags.len() / self.slots) as u32
    }

    /// Return the tags of one frame.
    #[must_use]
    pub fn frame(&self, frame: u32) -> &[Tag] {
        &self.tags[frame as usize * self.slots..][..self.slots]
    }

    /// Return the tags of one frame for writing.
    pub fn frame_mut(&mut self, frame: u32) -> &mut [Tag] {
        &mut self.tags[frame as usize * self.slots..][..self.slots]
    }
}

/// All arenas of an episode. A removed arena stays removed: its process exited, or the slab returned to the node.
#[derive(Debug, Default)]
pub struct Arenas {
    all: Vec<Option<Arena>>,
}

impl Arenas {
    /// Add an arena of `frames` frames with `slots` token slots each.
    pub fn add(&mut self, frames: u32, slots: usize) -> ArenaId {
        let id = self.all.len();
        self.all.push(Some(Arena::new(frames, slots, id as u64)));
        id
    }

    /// Remove an arena. Devices that still copy to or from it find nothing.
    pub fn remove(&mut self, id: ArenaId) {
        self.all[id] = None;
    }

    /// Return an arena while it exists.
    #[must_use]
    pub fn get(&self, id: ArenaId) -> Option<&Arena> {
        self.all[id].as_ref()
    }

    /// Return one slot's tag; `None` if the arena is gone.
    #[must_use]
    pub fn read(&self, place: Place, slot: usize) -> Option<Tag> {
        self.get(place.arena).map(|arena| arena.frame(place.frame)[slot])
    }

    /// Write one slot; do nothing if the arena is gone.
    pub fn write(&mut self, place: Place, slot: usize, tag: Tag) {
        if let Some(arena) = &mut self.all[place.arena] {
            arena.frame_mut(place.frame)[slot] = tag;
        }
    }
}

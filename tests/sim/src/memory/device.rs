//! Devices: copies that take several events, so that a premature read or reuse of a frame is detected.
//!
//! Between its start and its completion a copy reads its source and writes its target at arbitrary moments, in any order and more
//! than once. Nothing stops it, neither a cancel nor the end of its session, only the exit of the process that runs it.

use super::{Arenas, Place, Tag};
use crate::base::Rng;

/// Index of a copy; reused after its completion.
pub type CopyId = usize;

/// Fault of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFault {
    /// Moves something, then reports an error.
    Failed,
    /// Moves a part, then reports fewer bytes than the page has.
    Short,
    /// Takes a hundred times as long.
    Late,
    /// Moves a part and never completes.
    Endless,
}

/// Microseconds between two memory accesses of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Usually: minimum and maximum.
    pub usual: (u64, u64),
    /// If the copy is late: minimum and maximum.
    pub late: (u64, u64),
}

/// Result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was moved.
    Whole,
    /// A part was moved.
    Short,
    /// An error was reported.
    Failed,
}

/// Result of [`Devices::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The copy continues after this many microseconds.
    Again(u64),
    /// The copy continues, but will never end.
    Never,
    /// The copy is over.
    Done(Outcome),
}

/// A copy in flight.
#[derive(Debug)]
pub struct Copy {
    /// Owner: index of the session with the device.
    pub owner: usize,
    /// Token of the owner.
    pub token: u64,
    from: Place,
    to: Place,
    fault: Option<CopyFault>,
    /// Moved slots, one bit each.
    moved: u64,
    /// A slot that was read and not yet written.
    held: Option<(usize, Tag)>,
    slots: usize,
    events: u32,
    pace_us: (u64, u64),
}

/// All copies in flight of an episode.
#[derive(Debug, Default)]
pub struct Devices {
    copies: Vec<Option<Copy>>,
    free: Vec<CopyId>,
}

impl Devices {
    /// Start a copy of a page of `slots` token slots (at most 64); return the delay until its first `advance`.
    pub fn start(
        &mut self,
        rng: &mut Rng,
        (owner, token): (usize, u64),
        (from, to): (Place, Place),
        slots: usize,
        fault: Option<CopyFault>,
        pace: Pace,
    ) -> (CopyId, u64) {
        debug_assert!(slots <= 64);
        let pace_us = if fault == Some(CopyFault::Late) { pace.late } else { pace.usual };
        let copy = Copy { owner, token, from, to, fault, moved: 0, held: None, slots, events: 0, pace_us };
        let id = self.free.pop().unwrap_or_else(|| {
            self.copies.push(None);
            self.copies.len() - 1
        });
        self.copies[id] = Some(copy);
        (id, rng.between(pace_us.0, pace_us.1))
    }

    /// Let the copy access memory once.
    pub fn advance(&mut self, rng: &mut Rng, arenas: &mut Arenas, id: CopyId) -> Progress {
        let Some(copy) = &mut self.copies[id] else { return Progress::Never };
        let progress = copy.advance(rng, arenas);
        if let Progress::Done(_) = progress {
            self.copies[id] = None;
            self.free.push(id);
        }
        progress
    }

    /// Return a copy while it is in flight.
    #[must_use]
    pub fn get(&self, id: CopyId) -> Option<&Copy> {
        self.copies.get(id).and_then(Option::as_ref)
    }

    /// Stop the copies of a process that exited, where they are. Their ids are not reused.
    pub fn stop(&mut self, owner: usize) {
        self.copies.iter_mut().filter(|c| c.as_ref().is_some_and(|c| c.owner == owner)).for_each(|c| *c = None);
    }

    /// Return a copy in flight that conflicts with a copy from `from` to `to`. Reads of a process that is not `alive` do not
    /// conflict.
    pub fn conflict(&self, from: Place, to: Place, alive: impl Fn(usize) -> bool) -> Option<&Copy> {
        let disturbed = |copy: &&Copy| copy.from == to && alive(copy.owner);
        self.copies.iter().flatten().find(|copy| copy.to == from || copy.to == to || disturbed(copy))
    }

    /// Return whether a copy in flight writes the arena, or one of a process that is `alive` reads it.
    pub fn touches(&self, arena: super::ArenaId, alive: impl Fn(usize) -> bool) -> bool {
        let touches = |copy: &Copy| copy.to.arena == arena || (copy.from.arena == arena && alive(copy.owner));
        self.copies.iter().flatten().any(touches)
    }

    /// Return the number of copies in flight of `owner`.
    #[must_use]
    pub fn in_flight(&self, owner: usize) -> usize {
        self.copies.iter().flatten().filter(|c| c.owner == owner).count()
    }
}

impl Copy {
    /// Return the owner of the copy as text.
    #[must_use]
    pub fn says(&self) -> String {
        match self.owner {
            usize::MAX => format!("the disk (transfer {})", self.token >> 16),
            owner => format!("s{owner} (copy {})", self.token),
        }
    }

    fn advance(&mut self, rng: &mut Rng, arenas: &mut Arenas) -> Progress {
        self.events += 1;
        if let Some((slot, tag)) = self.held.take() {
            arenas.write(self.to, slot, tag);
            self.moved |= 1 << slot;
        }
        let all = u64::MAX >> (64 - self.slots);
        let limit = match self.fault {
            Some(CopyFault::Failed | CopyFault::Short | CopyFault::Endless) => rng.index(self.slots + 1) as u32,
            _ => u32::MAX,
        };
        if self.moved.count_ones() >= limit.min(self.slots as u32) && self.fault.is_some() || self.moved == all {
            return self.end(rng, arenas);
        }
        // A burst of whole slots, then one slot that is read now and written at the next event.
        let burst = rng.index(self.slots + 1);
        for _ in 0..burst {
            let left = all & !self.moved;
            if left == 0 {
                break;
            }
            let slot = Self::nth_bit(left, rng.index(left.count_ones() as usize));
            if let Some(tag) = arenas.read(self.from, slot) {
                arenas.write(self.to, slot, tag);
            }
            self.moved |= 1 << slot;
        }
        let slot = rng.index(self.slots);
        self.held = arenas.read(self.from, slot).map(|tag| (slot, tag));
        Progress::Again(rng.between(self.pace_us.0, self.pace_us.1))
    }

    fn end(&mut self, rng: &mut Rng, arenas: &mut Arenas) -> Progress {
        match self.fault {
            Some(CopyFault::Endless) => {
                // It keeps accessing its target occasionally until its process exits.
                let slot = rng.index(self.slots);
                if let Some(tag) = arenas.read(self.from, slot) {
                    arenas.write(self.to, slot, tag);
                }
                if self.events < 64 { Progress::Again(rng.between(100, 5000)) } else { Progress::Never }
            }
            Some(CopyFault::Short) => Progress::Done(Outcome::Short),
            Some(CopyFault::Failed) => Progress::Done(Outcome::Failed),
            Some(CopyFault::Late) | None => {
                // The last access moves a slot once more, from a source that must be unchanged.
                let slot = rng.index(self.slots);
                if let Some(tag) = arenas.read(self.from, slot) {
                    arenas.write(self.to, slot, tag);
                }
                Progress::Done(Outcome::Whole)
            }
        }
    }

    fn nth_bit(mut bits: u64, n: usize) -> usize {
        for _ in 0..n {
            bits &= bits - 1;
        }
        bits.trailing_zeros() as usize
    }
}

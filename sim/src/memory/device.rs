//! Devices: copies that take several events, so that whoever looks too early, or reuses a frame too early, sees it.
//!
//! Between its start and its completion a copy reads its source and writes its target at moments of its own choosing, in any
//! order and more than once, and nothing stops it: not a cancel, not the death of its session's lease, only the exit of the
//! process that runs it.

use super::{Arenas, Place, Tag};
use crate::base::Rng;

/// Index of a copy; reused after its completion.
pub type CopyId = usize;

/// What goes wrong with a copy.
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

/// How long a device takes between two touches of memory, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// As a rule: least and most.
    pub usual: (u64, u64),
    /// When it is late.
    pub late: (u64, u64),
}

/// How a copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was moved.
    Whole,
    /// A part was moved.
    Short,
    /// An error was reported.
    Failed,
}

/// What a call of [`Devices::advance`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The copy goes on after so many microseconds.
    Again(u64),
    /// The copy goes on, but will never end.
    Never,
    /// The copy is over.
    Done(Outcome),
}

/// A copy in flight.
#[derive(Debug)]
pub struct Copy {
    /// Who runs it: index of the session that owns the device.
    pub owner: usize,
    /// What it is for: whatever its owner wants to remember.
    pub token: u64,
    from: Place,
    to: Place,
    fault: Option<CopyFault>,
    /// Slots moved, a bit each.
    moved: u64,
    /// A slot that was read and is not written yet.
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
    /// Start a copy of a page of `slots` token slots (at most 64); its first event is `advance`, after the delay returned.
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

    /// Let the copy touch memory once.
    pub fn advance(&mut self, rng: &mut Rng, arenas: &mut Arenas, id: CopyId) -> Progress {
        let Some(copy) = &mut self.copies[id] else { return Progress::Never };
        let progress = copy.advance(rng, arenas);
        if let Progress::Done(_) = progress {
            self.copies[id] = None;
            self.free.push(id);
        }
        progress
    }

    /// Return the copy, while it is in flight.
    #[must_use]
    pub fn get(&self, id: CopyId) -> Option<&Copy> {
        self.copies.get(id).and_then(Option::as_ref)
    }

    /// The process that ran these copies exited: they stop where they are. Their ids are not reused.
    pub fn stop(&mut self, owner: usize) {
        self.copies.iter_mut().filter(|c| c.as_ref().is_some_and(|c| c.owner == owner)).for_each(|c| *c = None);
    }

    /// Return a copy in flight that a copy from `from` to `to` would disturb, or be disturbed by. What a process that is not `alive`
    /// still reads is nobody's loss.
    pub fn conflict(&self, from: Place, to: Place, alive: impl Fn(usize) -> bool) -> Option<&Copy> {
        let disturbed = |copy: &&Copy| copy.from == to && alive(copy.owner);
        self.copies.iter().flatten().find(|copy| copy.to == from || copy.to == to || disturbed(copy))
    }

    /// Return whether a copy in flight writes the arena, or one of a process that is `alive` reads it.
    pub fn touches(&self, arena: super::ArenaId, alive: impl Fn(usize) -> bool) -> bool {
        let touches = |copy: &Copy| copy.to.arena == arena || (copy.from.arena == arena && alive(copy.owner));
        self.copies.iter().flatten().any(touches)
    }

    /// Copy in flight of `owner`.
    #[must_use]
    pub fn in_flight(&self, owner: usize) -> usize {
        self.copies.iter().flatten().filter(|c| c.owner == owner).count()
    }
}

impl Copy {
    /// Whose copy it is, in words.
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
                // It keeps touching its target now and then until its process exits.
                let slot = rng.index(self.slots);
                if let Some(tag) = arenas.read(self.from, slot) {
                    arenas.write(self.to, slot, tag);
                }
                if self.events < 64 { Progress::Again(rng.between(100, 5000)) } else { Progress::Never }
            }
            Some(CopyFault::Short) => Progress::Done(Outcome::Short),
            Some(CopyFault::Failed) => Progress::Done(Outcome::Failed),
            Some(CopyFault::Late) | None => {
                // The last touch: a slot is moved once more, from a source that must still be what it was.
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

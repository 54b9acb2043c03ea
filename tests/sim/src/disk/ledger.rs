//! Tracks damage and losses of contents on the disk over a whole episode. Explains later errors of engines, and counts them.

use crate::memory::{Arenas, Place, Tag};
use std::collections::BTreeSet;

/// The ledger. Contents are identified by the tags of their token slots, which no two pages share.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Places with flipped bits.
    rotten: BTreeSet<(usize, u32)>,
    /// Tags of pages that a read did not deliver completely and correctly.
    harmed: BTreeSet<Tag>,
    /// First tags of pages with a failed transfer.
    failed: BTreeSet<Tag>,
    /// First tags of pages that a lookup has found.
    found: BTreeSet<Tag>,
    /// Transfers that ended with a device error.
    pub errors: u64,
}

impl Ledger {
    /// Flip a bit of one token slot of a page on the disk.
    pub fn rot(&mut self, arenas: &mut Arenas, place: Place, slot: usize) {
        flip(arenas, place, slot);
        self.rotten.insert((place.arena, place.frame));
    }

    /// Record that a page on the disk is about to be written.
    pub fn fresh(&mut self, place: Place) {
        self.rotten.remove(&(place.arena, place.frame));
    }

    /// Return whether a place has flipped bits.
    #[must_use]
    pub fn is_rotten(&self, place: Place) -> bool {
        self.rotten.contains(&(place.arena, place.frame))
    }

    /// Record that a read did not deliver this page.
    pub fn harm(&mut self, tags: &[Tag]) {
        self.harmed.extend(tags);
    }

    /// Return whether the disk ever failed to deliver a page.
    #[must_use]
    pub fn any_harm(&self) -> bool {
        !self.harmed.is_empty()
    }

    /// Return whether the disk ever failed to deliver a page with this tag.
    #[must_use]
    pub fn harmed(&self, tag: Tag) -> bool {
        self.harmed.contains(&tag)
    }

    /// Record a failed transfer of this page.
    pub fn fail(&mut self, tags: &[Tag]) {
        self.failed.extend(tags.first());
    }

    /// Return whether a transfer of this page failed before.
    #[must_use]
    pub fn failed(&self, tags: &[Tag]) -> bool {
        tags.first().is_some_and(|tag| self.failed.contains(tag))
    }

    /// Record that a lookup has found the page that begins with this tag.
    pub fn found(&mut self, tag: Tag) {
        self.found.insert(tag);
    }

    /// Return whether a lookup has found this page.
    #[must_use]
    pub fn was_found(&self, tags: &[Tag]) -> bool {
        tags.first().is_some_and(|tag| self.found.contains(tag))
    }
}

/// Flip a bit of one token slot of a page in any arena.
pub fn flip(arenas: &mut Arenas, place: Place, slot: usize) {
    if let Some(tag) = arenas.read(place, slot) {
        arenas.write(place, slot, tag ^ 1 << 62);
    }
}
